from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.efficiency import capacity_efficiency


def test_ranks_that_never_wait_are_used_whole() -> None:
    assert capacity_efficiency([250, 100], [1000.0, 1000.0], 1000.0) == pytest.approx(1.0)


def test_waiting_half_the_time_halves_it() -> None:
    assert capacity_efficiency([100, 100], [500.0, 500.0], 1000.0) == pytest.approx(0.5)


def test_fast_rank_that_waits_costs_more_than_a_slow_one() -> None:
    fast_waits = capacity_efficiency([200, 100], [500.0, 1000.0], 1000.0)
    slow_waits = capacity_efficiency([400, 50], [1000.0, 500.0], 1000.0)
    assert fast_waits == pytest.approx(300 / 500)
    assert slow_waits == pytest.approx(450 / 500)


def test_rank_without_work_counts_for_nothing() -> None:
    assert capacity_efficiency([100, 0], [800.0, 0.0], 1000.0) == pytest.approx(0.8)


def test_no_time_and_no_work_are_zero() -> None:
    assert capacity_efficiency([100], [10.0], 0.0) == 0.0
    assert capacity_efficiency([0, 0], [0.0, 0.0], 10.0) == 0.0
    assert capacity_efficiency([], [], 10.0) == 0.0


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0.001, 1e6)), min_size=1, max_size=8), st.floats(1.0, 10.0))
def test_within_zero_and_one_when_nobody_is_busy_longer_than_the_wall(
    ranks: list[tuple[int, float]], slack: float
) -> None:
    samples, busy_ms = zip(*ranks, strict=True)
    efficiency = capacity_efficiency(samples, busy_ms, max(busy_ms) * slack)
    assert 0 < efficiency <= 1 / slack + 1e-9


def test_lists_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        capacity_efficiency([1, 2], [1.0], 10.0)
