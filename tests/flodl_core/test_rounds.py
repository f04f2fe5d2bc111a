from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.rounds import NO_COUNT, Window, batches_within, choose_deadline_ms

MS = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=8)


def _waste(ms_per_batch: list[float], deadline_ms: float, average_ms: float) -> float:
    """The model written out with windows, batch by batch."""
    busy = []
    for ms in ms_per_batch:
        window = Window(0, deadline_ms, NO_COUNT)
        while window.fits(ms):
            window.record(ms)
        busy.append(window.busy_ms)
    return 1 - sum(busy) / (len(busy) * (max(busy) + average_ms))


@given(MS, st.integers(1, 200), st.floats(0.0, 50.0))
def test_deadline_stays_within_thirty_per_cent_of_the_anchor(
    ms_per_batch: list[float], anchor: int, average_ms: float
) -> None:
    deadline = choose_deadline_ms(ms_per_batch, anchor=anchor, average_ms=average_ms)
    planned = anchor * max(ms_per_batch)
    assert 0.7 * planned * (1 - 1e-9) <= deadline <= 1.3 * planned * (1 + 1e-9)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=6), st.integers(1, 30), st.integers(0, 50))
def test_deadline_wastes_no_more_than_the_anchors_own(ms: list[int], anchor: int, average_ms: int) -> None:
    times = [float(each) for each in ms]
    deadline = choose_deadline_ms(times, anchor=anchor, average_ms=average_ms)
    planned = anchor * max(times)
    # A batch may go either way where exactly 0.7 of it fits; a hair off the deadline settles it for both.
    best = min(_waste(times, deadline * factor, average_ms) for factor in (1 - 1e-9, 1, 1 + 1e-9))
    assert best <= _waste(times, planned, average_ms) + 1e-8


def test_like_ranks_without_an_average_to_pay_keep_the_anchors_time() -> None:
    assert choose_deadline_ms([2.0, 2.0], anchor=10, average_ms=0.0) == 20.0


def test_deadline_moves_to_where_the_ranks_meet() -> None:
    # After 3 batches of the slow rank (30 ms) the fast one (14 ms) stands at 28; after 4 it stands at 42 against 40;
    # 7 and 5 meet exactly at 70, which is within reach of 60.
    assert batches_within(choose_deadline_ms([14.0, 10.0], anchor=4, average_ms=0.0), 14.0) == 5


def test_unmeasured_ranks_are_ignored() -> None:
    assert choose_deadline_ms([0.0, 3.0, 7.0], anchor=5, average_ms=1.0) == choose_deadline_ms(
        [3.0, 7.0], anchor=5, average_ms=1.0
    )


@pytest.mark.parametrize(
    ("ms_per_batch", "anchor", "average_ms", "message"),
    [
        ([0.0, 0.0], 5, 1.0, "no rank was measured"),
        ([], 5, 1.0, "no rank was measured"),
        ([1.0], 0, 1.0, "anchor"),
        ([1.0, -1.0], 5, 1.0, "at least 0"),
        ([1.0], 5, -1.0, "at least 0"),
    ],
)
def test_rounds_that_cannot_be_planned_are_refused(
    ms_per_batch: list[float], anchor: int, average_ms: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        choose_deadline_ms(ms_per_batch, anchor=anchor, average_ms=average_ms)


def _num_batches(window: Window, batch_ms: float) -> int:
    while window.fits(batch_ms):
        window.record(batch_ms)
    return window.num_batches


@pytest.mark.parametrize(("deadline_ms", "num_batches"), [(10.0, 10), (10.6, 10), (10.8, 11), (0.1, 1)])
def test_batch_is_started_while_most_of_it_fits_before_the_deadline(deadline_ms: float, num_batches: int) -> None:
    assert _num_batches(Window(0, deadline_ms, NO_COUNT), 1.0) == num_batches
    assert batches_within(deadline_ms, 1.0) == num_batches


@pytest.mark.parametrize(("count", "num_batches"), [(7, 7), (1, 1), (0, 1)])
def test_window_without_a_deadline_goes_by_count_and_holds_at_least_one(count: int, num_batches: int) -> None:
    assert _num_batches(Window(0, None, count), 1.0) == num_batches


def test_count_ends_a_window_before_its_deadline() -> None:
    assert _num_batches(Window(0, 100.0, 3), 1.0) == 3


@given(st.integers(1, 1000), st.integers(1, 50))
def test_windows_do_what_was_planned_for_them(deadline_ms: int, batch_ms: int) -> None:
    # Between whole tenths, so that the sum of many batches and the plan's product round alike.
    deadline = deadline_ms + 0.05
    assert _num_batches(Window(0, deadline, NO_COUNT), float(batch_ms)) == batches_within(deadline, float(batch_ms))
