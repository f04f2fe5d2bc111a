"""A rank's time is divided by cause, without gap or overlap, whatever the engine reports."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core import IdleCause, IdleGap
from flodl_core.idle_time import IdleMs
from flodl_core.timeline.lanes import MIN_HOLE_S, Lane
from tests.flodl_core.timeline.factories import window

MS = st.floats(0, 400, allow_nan=False)
IDLE = st.builds(IdleMs, sync=MS, wait=MS, load=MS, no_data=MS)


def idle_by_cause(lane: Lane) -> dict[IdleCause, float]:
    """Milliseconds of the causes that there are."""
    totals = {cause: sum(span.idle(cause) for span in lane.spans()) for cause in IdleCause}
    return {cause: round(ms, 6) for cause, ms in totals.items() if ms > 1e-6}


def test_time_before_the_first_batch_is_start_and_after_the_last_one_end() -> None:
    lane = Lane(0, limit=100)
    lane.add(window(0, 1.0, 1.2, busy_ms=200.0))
    lane.end(1.5)
    assert idle_by_cause(lane) == {IdleCause.START: 1000.0, IdleCause.END: 300.0}


def test_a_rank_that_never_trained_was_starting_all_the_time() -> None:
    lane = Lane(0, limit=100)
    lane.end(2.0)
    assert idle_by_cause(lane) == {IdleCause.START: 2000.0}


def test_what_the_worker_measured_is_told_apart_and_the_rest_is_unknown() -> None:
    lane = Lane(0, limit=100)
    lane.add(window(0, 0.0, 0.2, busy_ms=120.0, idle=IdleMs(sync=10.0, wait=20.0, load=30.0, no_data=5.0)))
    assert idle_by_cause(lane) == {
        IdleCause.SYNC: 10.0,
        IdleCause.WAIT: 20.0,
        IdleCause.LOAD: 30.0,
        IdleCause.NO_DATA: 5.0,
        IdleCause.UNKNOWN: 15.0,
    }


def test_waits_of_the_first_window_are_told_too() -> None:
    lane = Lane(0, limit=100)
    lane.add(window(0, 1.0, 1.2, busy_ms=50.0, idle=IdleMs(load=300.0)))  # 150 ms of it before the first batch
    assert idle_by_cause(lane) == {IdleCause.START: 1000.0, IdleCause.LOAD: 150.0}


def test_a_long_wait_between_two_windows_is_a_gap_of_its_own() -> None:
    lane = Lane(3, limit=100)
    lane.add(window(3, 0.0, 0.2, busy_ms=200.0))
    lane.add(window(3, 0.5, 0.7, busy_ms=198.0, idle=IdleMs(no_data=300.0, sync=2.0)))
    assert [replace(gap, idle_ms=round(gap.idle_ms, 6)) for gap in lane.gaps(1.0)] == [
        IdleGap(rank=3, start_s=0.2, end_s=0.5, cause=IdleCause.NO_DATA, idle_ms=300.0),
        IdleGap(rank=3, start_s=0.5, end_s=0.7, cause=IdleCause.SYNC, idle_ms=2.0),
    ]


def test_gaps_shorter_than_asked_for_are_not_told() -> None:
    lane = Lane(0, limit=100)
    lane.add(window(0, 0.0, 0.2, busy_ms=150.0, idle=IdleMs(sync=10.0, wait=40.0)))
    assert [gap.cause for gap in lane.gaps(11.0)] == [IdleCause.WAIT]


@given(
    st.lists(st.tuples(st.floats(0, 3 * MIN_HOLE_S), st.floats(0.001, 0.4), st.floats(0, 1.2), IDLE), max_size=60),
    st.floats(0, 1),
    st.integers(4, 40),
)
def test_a_lane_divides_all_of_the_time(
    windows: list[tuple[float, float, float, IdleMs]], tail_s: float, limit: int
) -> None:
    lane, now_s = Lane(0, limit=limit), 0.0
    for hole_s, length_s, busy, idle in windows:
        start_s = now_s + hole_s
        now_s = start_s + length_s
        lane.add(window(0, start_s, now_s, busy_ms=1e3 * busy * length_s, idle=idle))
    lane.end(now_s + tail_s)
    spans = lane.spans()
    assert len(spans) <= limit
    edges = [0.0, *(span.end_s for span in spans)]
    assert [span.start_s for span in spans] == edges[:-1]
    assert edges[-1] == now_s + tail_s
    for span in spans:
        assert min(span.train_ms, *span.idle_ms) >= 0
        assert span.train_ms + sum(span.idle_ms) == pytest.approx(1e3 * (span.end_s - span.start_s), abs=1e-6)
