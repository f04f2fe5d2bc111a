"""A series stays within its limit, and nothing that was added to it is lost."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.thinned_series import ThinnedSeries

Item = tuple[float, int]
"""When it was, and for how many it stands."""


def merge(first: Item, second: Item) -> Item:
    return second[0], first[1] + second[1]


def series(limit: int) -> ThinnedSeries[Item]:
    return ThinnedSeries(limit, time_s=lambda item: item[0], merge=merge)


@given(st.lists(st.floats(0, 50, allow_subnormal=False), max_size=400), st.integers(4, 40))
def test_it_is_bounded_and_loses_nothing(gaps_s: list[float], limit: int) -> None:
    thinned = series(limit)
    times = list(itertools.accumulate(gaps_s))
    for time_s in times:
        thinned.add((time_s, 1))
        assert len(thinned) <= limit
    assert sum(num for _, num in thinned) == thinned.num_added == len(times)
    kept = [time_s for time_s, _ in thinned]
    assert kept == sorted(kept)
    assert set(kept) <= set(times)
    assert kept[-1:] == times[-1:]


def test_up_to_the_limit_items_stay_as_they_came() -> None:
    thinned = series(10)
    for number in range(10):
        thinned.add((0.1 * number**2, 1))
    assert [num for _, num in thinned] == [1] * 10


def test_above_it_the_whole_series_gets_evenly_coarser() -> None:
    thinned = series(100)
    for number in range(10_000):
        thinned.add((0.1 * number, 1))
    counts = [num for _, num in thinned][1:-1]
    assert len(thinned) > 40
    assert max(counts) < 2 * min(counts)


def test_a_limit_below_four_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        series(3)
