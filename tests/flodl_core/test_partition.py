from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.partition import equal_sizes, ratio_to_sizes, throughput_sizes
from tests.reference_data import reference_cases


def _sizes(case: dict[str, Any]) -> tuple[int, ...]:
    match case["fn"]:
        case "equal_sizes":
            return equal_sizes(case["world_size"], case["total"])
        case "ratio_to_sizes":
            return ratio_to_sizes(case["ratios"], case["total"])
        case "throughput_sizes":
            return throughput_sizes(case["ms_per_batch"], case["total"])
        case other:
            raise AssertionError(f"unknown function {other}")


def test_replays_the_reference() -> None:
    cases = [case for case in reference_cases("partition") if min(case.get("ms_per_batch", [1.0])) > 0]
    assert {case["fn"] for case in cases} == {"equal_sizes", "ratio_to_sizes", "throughput_sizes"}
    for case in cases:
        assert list(_sizes(case)) == case["out"], case


def test_unmeasured_rank_is_taken_to_be_as_fast_as_the_median() -> None:
    assert throughput_sizes([0.0, 1.0, 2.0, 4.0], 900) == throughput_sizes([2.0, 1.0, 2.0, 4.0], 900)


def test_ranks_share_evenly_while_none_is_measured() -> None:
    assert throughput_sizes([0.0, 0.0, 0.0], 7) == (3, 2, 2)


def test_ratios_need_not_sum_to_one() -> None:
    assert ratio_to_sizes([1, 3], 100) == ratio_to_sizes([0.25, 0.75], 100) == (25, 75)


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=9), st.integers(0, 10**9))
def test_nothing_is_lost_or_dealt_twice(numbers: list[float], total: int) -> None:
    for sizes in (
        equal_sizes(len(numbers), total),
        ratio_to_sizes(numbers, total),
        throughput_sizes(numbers, total),
    ):
        assert sum(sizes) == total
        assert min(sizes) >= 0
        assert len(sizes) == len(numbers)


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=9), st.integers(0, 10**6))
def test_each_rank_is_within_one_sample_of_its_share(ratios: list[float], total: int) -> None:
    for size, ratio in zip(ratio_to_sizes(ratios, total), ratios, strict=True):
        assert size == pytest.approx(total * ratio / sum(ratios), abs=1.001)


@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=9), st.integers(0, 10**6))
def test_faster_ranks_never_get_less(ms_per_batch: list[float], total: int) -> None:
    ordered = sorted(ms_per_batch)
    sizes = throughput_sizes(ordered, total)
    assert list(sizes) == sorted(sizes, reverse=True)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_impossible_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="ratios must be finite"):
        ratio_to_sizes([1.0, bad], 10)
    with pytest.raises(ValueError, match="ms_per_batch must be finite"):
        throughput_sizes([1.0, bad], 10)


def test_splitting_among_nobody_or_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 rank"):
        equal_sizes(0, 10)
    with pytest.raises(ValueError, match="at least 1 rank"):
        throughput_sizes([], 10)
    with pytest.raises(ValueError, match="total"):
        ratio_to_sizes([1.0], -1)
