from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.elche import ElChe
from tests.reference_data import reference_cases

# No clock tells less than a nanosecond, so a time is 0 or at least that.
WALL_MS = st.just(0.0) | st.floats(1e-6, 1e4)
REPORTS = st.integers(1, 5).flatmap(
    lambda world_size: st.lists(
        st.tuples(
            st.lists(WALL_MS, min_size=world_size, max_size=world_size),
            st.lists(st.integers(0, 50), min_size=world_size, max_size=world_size),
            st.floats(0.0, 1e4),
        ),
        min_size=1,
        max_size=12,
    )
)


def _built(case: dict[str, Any]) -> ElChe:
    elche = ElChe(case["world_size"], case["anchor"])
    setters: dict[str, Callable[..., None]] = {
        "overhead_target": elche.set_overhead_target,
        "max_anchor": elche.set_max_anchor,
        "speed_ratio": elche.set_speed_ratio,
    }
    for name, *arguments in case["build"]:
        setters[name](*arguments)
    return elche


def _assert_state(elche: ElChe, expected: list[Any]) -> None:
    anchor, counts, ms, anchor_wall_ms, total, is_calibrated, has_speed_hint = expected
    assert (elche.anchor, list(elche.counts), elche.total_batches) == (anchor, counts, total)
    assert (elche.is_calibrated, elche.has_speed_hint) == (is_calibrated, has_speed_hint)
    assert elche.ms_per_batch == pytest.approx(ms, rel=1e-9, abs=1e-9)
    assert elche.anchor_wall_ms == pytest.approx(anchor_wall_ms, rel=1e-9, abs=1e-9)


def _assert_clamped(elche: ElChe, limit: int, reference: list[int]) -> None:
    # The reference gives every rank at least one, and so may return more than the limit; ours never does.
    clamped = elche.clamp_total(limit)
    if sum(reference) <= limit:
        assert list(clamped) == reference
    else:
        assert sum(clamped) == limit


def _replay(case: dict[str, Any]) -> None:
    elche = _built(case)
    _assert_state(elche, case["init"])
    for name, *row in case["ops"]:
        if name == "report":
            elche.report(row[0], row[1], row[2])
            _assert_state(elche, row[3:])
        elif name == "nudge":
            elche.nudge(row[0])
            _assert_state(elche, row[1:])
        else:
            assert name == "clamp"
            _assert_clamped(elche, row[0], row[1])


def test_replays_the_reference() -> None:
    cases = [case for case in reference_cases("elche") if all(name != "max_batch_diff" for name, *_ in case["build"])]
    assert cases
    for case in cases:
        _replay(case)


def _calibrated(ms: list[float], **options: Any) -> ElChe:
    elche = ElChe(len(ms), **options)
    elche.report([10 * each for each in ms], [10] * len(ms), 0.0)
    return elche


def test_fast_ranks_get_as_many_batches_as_fit_into_the_slowest_ones_time() -> None:
    assert _calibrated([1.0, 2.5, 2.0], anchor=10).counts == (25, 10, 13)


def test_reference_default_of_the_overhead_target_is_a_tenth() -> None:
    elche = ElChe(1, 10)
    elche.report([100.0], [10], 10.0)
    assert elche.anchor == 10
    elche.report([100.0], [10], 10.1)
    assert elche.anchor == 11


def test_anchor_never_passes_its_limit_even_for_an_endless_average() -> None:
    elche = ElChe(1, 10, max_anchor=50)
    elche.report([1.0], [10], float("inf"))
    assert elche.anchor == 50


def test_cheap_averages_shrink_the_anchor_one_by_one_to_where_it_started() -> None:
    elche = ElChe(1, 10)
    elche.report([100.0], [10], 12.0)
    anchors = []
    for _ in range(4):
        elche.report([100.0], [10], 0.1)
        anchors.append(elche.anchor)
    assert anchors == [11, 10, 10, 10]


def test_held_anchor_stays_while_speeds_follow() -> None:
    elche = ElChe(2, 10)
    elche.report([100.0, 50.0], [10, 10], 90.0, hold=True)
    assert (elche.anchor, elche.counts) == (10, (10, 20))


def test_rank_without_batches_keeps_its_speed() -> None:
    elche = _calibrated([1.0, 2.0])
    elche.report([0.0, 20.0], [0, 10], 0.0)
    assert elche.ms_per_batch == (1.0, 2.0)


def test_round_without_any_batch_changes_nothing() -> None:
    elche = ElChe(2, 7)
    elche.report([0.0, 0.0], [0, 0], 5.0)
    assert (elche.anchor, elche.is_calibrated) == (7, False)


def test_batch_limit_binds_the_hint() -> None:
    assert ElChe(3, 10, speed_hint=(1, 3.0)).counts == (30, 10, 30)
    assert ElChe(3, 10, speed_hint=(1, 3.0), max_batch_diff=5).counts == (15, 10, 15)


@given(REPORTS, st.integers(0, 20), st.integers(1, 20), st.integers(0, 100))
def test_counts_stay_within_the_batch_limit(
    reports: list[tuple[list[float], list[int], float]], diff: int, anchor: int, limit: int
) -> None:
    elche = ElChe(len(reports[0][0]), anchor, max_batch_diff=diff)
    for report in reports:
        elche.report(*report)
        assert max(elche.counts) - min(elche.counts) <= diff
        assert min(elche.counts) >= 1
        clamped = elche.clamp_total(limit)
        assert max(clamped) - min(clamped) <= max(diff, 1)


@given(REPORTS, st.integers(0, 20))
def test_batch_limit_never_freezes_the_plan(reports: list[tuple[list[float], list[int], float]], diff: int) -> None:
    """Bounded counts are those of the unbounded plan, cut at the slowest rank's plus the limit."""
    free, bound = ElChe(len(reports[0][0])), ElChe(len(reports[0][0]), max_batch_diff=diff)
    for report in reports:
        free.report(*report)
        bound.report(*report)
        assert bound.counts == tuple(min(count, min(free.counts) + diff) for count in free.counts)


@given(REPORTS, st.integers(0, 300), st.none() | st.integers(0, 20))
def test_clamped_counts_sum_to_the_limit_and_never_to_more(
    reports: list[tuple[list[float], list[int], float]], limit: int, diff: int | None
) -> None:
    elche = ElChe(len(reports[0][0]), max_batch_diff=diff)
    for report in reports:
        elche.report(*report)
    clamped = elche.clamp_total(limit)
    assert sum(clamped) == min(limit, elche.total_batches)
    assert min(clamped) >= (1 if limit >= len(clamped) else 0)


def test_clamping_to_less_than_one_batch_each_leaves_some_ranks_without() -> None:
    assert sorted(ElChe(4, 10).clamp_total(2)) == [0, 0, 1, 1]
    assert ElChe(4, 10).clamp_total(0) == (0, 0, 0, 0)


@given(REPORTS, st.floats(-1.0, 2.0))
def test_nudge_never_raises_the_anchor(reports: list[tuple[list[float], list[int], float]], factor: float) -> None:
    elche = ElChe(len(reports[0][0]), 30)
    for report in reports:
        elche.report(*report)
        before = elche.anchor
        elche.nudge(factor)
        assert 1 <= elche.anchor <= before


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0,), {}, "world_size"),
        ((2, 0), {}, "anchor"),
        ((2,), {"max_batch_diff": -1}, "max_batch_diff"),
        ((2,), {"speed_hint": (2, 1.5)}, "slow_rank"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: tuple[int, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ElChe(*arguments, **options)


def test_report_of_another_world_size_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 2 ranks"):
        ElChe(2).report([1.0], [1, 1], 0.0)


def test_negative_total_is_refused() -> None:
    with pytest.raises(ValueError, match="limit"):
        ElChe(2).clamp_total(-1)
