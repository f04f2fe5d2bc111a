from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.overshoot import OvershootLimit


@pytest.mark.parametrize(
    ("total_batches", "start", "ceiling"), [(0, 2, 3), (199, 2, 3), (300, 3, 6), (450, 4, 9), (10**6, 5, 10)]
)
def test_automatic_limit_grows_with_stable_averages_to_its_ceiling(
    total_batches: int, start: int, ceiling: int
) -> None:
    overshoot = OvershootLimit(total_batches)
    limits = []
    for _ in range(12):
        limits.append(overshoot.limit)
        overshoot.on_average(stable=True)
    assert limits == [min(start + i, ceiling) for i in range(12)]


def test_unstable_average_holds_the_limit() -> None:
    overshoot = OvershootLimit(1000)
    overshoot.on_average(stable=False)
    assert overshoot.limit == 5


@given(st.integers(0, 10**9), st.lists(st.booleans()))
def test_automatic_limit_stays_far_below_fifteen(total_batches: int, averages: list[bool]) -> None:
    overshoot = OvershootLimit(total_batches)
    for stable in averages:
        overshoot.on_average(stable)
    assert 2 <= overshoot.limit <= 10


@given(st.integers(0, 100), st.lists(st.booleans()))
def test_fixed_limit_stays(fixed: int, averages: list[bool]) -> None:
    overshoot = OvershootLimit(1000, fixed)
    for stable in averages:
        overshoot.on_average(stable)
    assert overshoot.limit == fixed


def test_negative_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="max_overshoot"):
        OvershootLimit(10, -1)
    with pytest.raises(ValueError, match="total_batches"):
        OvershootLimit(-1)
