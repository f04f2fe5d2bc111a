"""Local SGD through the CPU. Meetings: ``test_local_meetings``; how runs end: ``test_local_endings``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flodl_core.commands import CloseMeetings, ComputeAverage, Emit
from flodl_core.errors import NonFiniteError
from flodl_core.events import AnchorChanged, RunStarted, SnapshotLate, SyncEvent, Throttled
from flodl_core.local_options import LocalOptions
from flodl_core.messages import (
    OpenRound,
    StartEpoch,
    Throttle,
)
from flodl_core.policies import ApplyPolicy
from flodl_core.tally import Tally
from tests.flodl_core.local_driver import (
    EPOCH_SIZE,
    NOW_S,
    Driver,
    both_snapshots,
    collecting,
    computing_average,
    measured,
    run_ended,
    sync_event,
)
from tests.flodl_core.message_factories import (
    BATCH_SIZE,
    answer,
    averaged,
    computation,
    events,
    exiting,
    last_snapshot,
    open_round,
    report,
    request,
    sends,
    shutdown,
    snapshot,
    start_epoch,
    sync_done,
    to,
    update,
    window_done,
)

# Start and speed


def test_run_starts_with_a_round_without_limits_and_a_probe_for_every_rank() -> None:
    assert Driver().all == [
        Emit(event=RunStarted(time_s=0.0, devices=("cpu0", "cpu1"), num_epochs=2, num_samples=EPOCH_SIZE)),
        to(0, open_round(0, planned=4, total=8)),
        to(1, open_round(0, planned=4, total=8)),
        to(0, start_epoch(0, 0, 16)),
        to(1, start_epoch(0, 16, 16)),
    ]


def test_first_round_is_opened_anew_once_the_speed_of_every_rank_is_known() -> None:
    driver = Driver()
    assert driver.handle(report(0, 2)) == [to(0, start_epoch(0, 32, 32))]
    assert driver.handle(report(1, 2, ms=25.0)) == [
        to(0, open_round(0, deadline_ms=100.0, planned=10, total=14)),
        to(1, open_round(0, deadline_ms=100.0, planned=4, total=14)),
        to(1, start_epoch(0, 64, 16)),
    ]
    assert driver.handle(report(0)) == []


def test_rank_of_which_nothing_is_known_leaves_the_first_round_without_limits() -> None:
    driver = Driver()
    driver.handle(report(0, 2))
    assert driver.handle(report(1, 1, num_full=0)) == [to(1, start_epoch(0, 64, 16))]


def test_async_goes_by_counts_that_are_fixed_when_the_round_opens() -> None:
    driver = measured(options=LocalOptions(policy=ApplyPolicy.ASYNC, anchor=4, max_overshoot=2))
    opened = [send for send in sends(driver.all) if isinstance(send.message, OpenRound)][-2:]
    assert opened == [
        to(0, open_round(0, count=10, planned=10, total=14)),
        to(1, open_round(0, count=4, planned=4, total=14)),
    ]


def test_fast_rank_is_planned_at_most_the_limit_ahead_of_the_slowest() -> None:
    driver = measured(options=LocalOptions(anchor=4, max_batch_diff=3))
    opened = [send for send in sends(driver.all) if isinstance(send.message, OpenRound)][-2:]
    assert opened == [
        to(0, open_round(0, deadline_ms=100.0, count=7, planned=7, total=11)),
        to(1, open_round(0, deadline_ms=100.0, count=7, planned=4, total=11)),
    ]


# An average through the CPU


def test_average_starts_when_every_window_has_ended() -> None:
    driver = measured()
    assert driver.handle(window_done(0)) == []
    assert driver.handle(window_done(1)) == [
        request(0, 0),
        request(1, 0),
        to(0, open_round(1, deadline_ms=100.0, planned=10, total=14)),
        to(1, open_round(1, deadline_ms=100.0, planned=4, total=14)),
    ]
    first, second = both_snapshots()
    assert driver.handle(first) == []
    assert driver.handle(second) == [
        ComputeAverage(
            round=0,
            snapshots={0: first, 1: second},
            tally=Tally(
                weights={0: 16, 1: 16},
                num_samples={0: 16, 1: 16},
                excluded=(),
                discarded_samples=0,
                global_step=4,
                epochs=(),
                most_work=0,
            ),
        )
    ]
    assert driver.handle(averaged(0, weights={0: 16, 1: 16}, global_step=4)) == [
        sync_event(weights={0: 16, 1: 16}),
        update(0, 0, global_step=4),
        update(1, 0, global_step=4),
    ]
    assert driver.handle(sync_done(0), sync_done(1)) == []
    assert driver.coordinator.num_syncs == 1


def test_rank_that_finishes_its_chunk_while_an_average_is_under_way_gets_the_next() -> None:
    driver = collecting()
    assert driver.handle(report(0, 4, round_=1)) == [to(0, start_epoch(0, 80, 32))]
    command = computation(driver.handle(*both_snapshots()))
    dealt = [to(1, start_epoch(0, 112, 8)), to(1, start_epoch(0, 120, 8))]
    assert driver.handle(report(1, 2, ms=25.0, round_=1)) == dealt
    assert [send.rank for send in sends(driver.handle(answer(command)))] == [0, 1]


def test_never_two_averages_at_once() -> None:
    driver, command = computing_average()
    assert driver.handle(window_done(0, 1), window_done(1, 1)) == []
    commands = driver.handle(answer(command))
    assert [send for send in sends(commands) if send in (request(0, 1), request(1, 1))] == [
        request(0, 1),
        request(1, 1),
    ]
    assert sends(commands)[:2] == [update(0, 0, global_step=4), update(1, 0, global_step=4)]


def test_rank_that_is_not_finite_is_left_out_and_told_so() -> None:
    driver = collecting()
    sick = snapshot(0, num_samples=16, total_batches=2, is_finite=False)
    command = computation(driver.handle(sick, both_snapshots()[1]))
    assert driver.handle(answer(command)) == [
        sync_event(weights={1: 16}, excluded=(0,)),
        update(0, 0, global_step=4, is_excluded=True),
        update(1, 0, global_step=4),
    ]
    assert driver.coordinator.book.discarded_samples == 16


def test_run_fails_where_no_rank_is_finite() -> None:
    driver = collecting()
    sick = [snapshot(rank, is_finite=False) for rank in (0, 1)]
    assert driver.handle(*sick) == [shutdown(0, hand_in=True), shutdown(1, hand_in=True), CloseMeetings()]
    last = [message for rank in (0, 1) for message in (last_snapshot(rank, is_finite=False), exiting(rank))]
    commands = driver.handle(*last)
    error = driver.coordinator.callback_error
    assert isinstance(error, NonFiniteError)
    assert commands[-2:] == run_ended("failed", global_step=4, payload=None, error=error)


def test_anchor_that_changes_is_announced() -> None:
    driver, command = computing_average()
    driver.handle(answer(command))
    driver.handle(sync_done(0, stall_ms=30.0), sync_done(1, stall_ms=20.0))
    driver.handle(report(0, 4, round_=1), report(1, 2, ms=25.0, round_=1), window_done(0, 1))
    changed = [event for event in events(driver.handle(window_done(1, 1))) if isinstance(event, AnchorChanged)]
    # the median of two costs, 0 and 30 ms, over 50 ms of computing is ten times the target
    assert changed == [AnchorChanged(time_s=NOW_S, round=1, before=4, after=40)]
    assert driver.coordinator.anchor == 40


def test_cores_that_averaging_takes_from_the_workers_are_part_of_its_cost() -> None:
    driver, command = computing_average()
    driver.handle(replace(answer(command), taken_ms=20.0))
    driver.handle(sync_done(0, stall_ms=10.0), sync_done(1, stall_ms=5.0))
    driver.handle(report(0, 4, round_=1), report(1, 2, ms=25.0, round_=1), window_done(0, 1))
    driver.handle(window_done(1, 1))
    assert driver.coordinator.anchor == 40  # as with a stall of 30 ms


# Late snapshots


def test_round_goes_on_without_a_snapshot_that_is_late() -> None:
    driver = collecting()
    limit_s = NOW_S + 5.0 + 3 * 0.010
    assert driver.coordinator.next_deadline_s == pytest.approx(limit_s)
    driver.handle(both_snapshots()[0])
    limit_s = NOW_S + 5.0 + 3 * 0.025
    assert driver.coordinator.next_deadline_s == pytest.approx(limit_s)
    assert driver.tick(limit_s - 0.01) == []
    commands = driver.tick(limit_s + 0.01)
    late = SnapshotLate(time_s=limit_s + 0.01, rank=1, round=0, limit_s=5.0)
    assert commands[:-1] == [Emit(event=late)]
    assert computation(commands).tally.weights == {0: 16}
    assert driver.coordinator.next_deadline_s is None


def test_global_step_of_an_average_holds_the_batches_of_a_rank_that_was_late() -> None:
    driver = collecting()
    driver.handle(both_snapshots()[0])
    command = computation(driver.tick(NOW_S + 10.0))
    assert command.tally.global_step == 2
    commands = driver.handle(answer(command), now_s=NOW_S + 10.0)
    (event,) = [event for event in events(commands) if isinstance(event, SyncEvent)]
    assert event.global_step == 4
    assert sends(commands) == [update(0, 0, global_step=4)]


def test_late_snapshot_is_answered_without_an_average() -> None:
    driver = collecting()
    driver.handle(both_snapshots()[0])
    command = computation(driver.tick(NOW_S + 10.0))
    none = update(1, 0, global_step=4, payload=None)
    assert driver.handle(both_snapshots()[1], now_s=NOW_S + 10.0) == [none]
    assert [send.rank for send in sends(driver.handle(answer(command), now_s=NOW_S + 10.0))] == [0]


def test_late_snapshot_is_not_taken_for_that_of_the_next_round() -> None:
    driver = collecting()
    driver.handle(both_snapshots()[0])
    command = computation(driver.tick(NOW_S + 10.0))
    driver.handle(answer(command), window_done(0, 1), now_s=NOW_S + 10.0)
    driver.handle(window_done(1, 1), now_s=NOW_S + 10.0)
    now_s = NOW_S + 11.0
    assert request(1, 1) in driver.all
    assert driver.handle(both_snapshots()[1], now_s=now_s) == [update(1, 0, global_step=4, payload=None)]
    assert driver.handle(snapshot(0, round_=1), now_s=now_s) == []
    assert computation(driver.handle(snapshot(1, round_=1), now_s=now_s)).tally.weights == {0: 8, 1: 8}


def test_round_waits_on_while_there_is_nothing_to_average() -> None:
    driver = collecting()
    now_s = NOW_S + 10.0
    assert [event for event in events(driver.tick(now_s)) if isinstance(event, SnapshotLate)] == [
        SnapshotLate(time_s=now_s, rank=rank, round=0, limit_s=5.0) for rank in (0, 1)
    ]
    assert driver.coordinator.next_deadline_s == now_s + 5.0
    assert computation(driver.handle(*both_snapshots(), now_s=now_s)).tally.weights == {0: 16, 1: 16}


def test_limit_doubles_after_a_round_that_went_on_without_a_late_snapshot() -> None:
    driver = collecting()
    driver.handle(both_snapshots()[0])
    command = computation(driver.tick(NOW_S + 10.0))
    driver.handle(both_snapshots()[1], answer(command), window_done(0, 1), window_done(1, 1), now_s=NOW_S + 10.0)
    assert request(1, 1) in driver.all
    limit_s = NOW_S + 10.0 + 2 * 5.0
    assert driver.coordinator.next_deadline_s == pytest.approx(limit_s + 3 * 0.010)
    now_s = limit_s + 1.0
    late = [event for event in events(driver.tick(now_s)) if isinstance(event, SnapshotLate)]
    assert late == [SnapshotLate(time_s=now_s, rank=rank, round=1, limit_s=10.0) for rank in (0, 1)]
    assert driver.coordinator.next_deadline_s == now_s + 10.0


def test_rank_that_may_still_be_warming_up_has_no_limit() -> None:
    driver = Driver(epoch_size=4 * BATCH_SIZE)
    driver.handle(report(0, 2), window_done(0))
    driver.handle(window_done(1))
    assert request(1, 0) in driver.all
    driver.handle(snapshot(0))
    assert driver.coordinator.next_deadline_s is None
    assert driver.tick(NOW_S + 1e6) == []


# Throttle


def _throttled() -> Driver:
    """Rank 0 is two batches ahead of rank 1, and only one is allowed."""
    driver = Driver(options=LocalOptions(anchor=4, max_batch_diff=1, max_overshoot=2))
    assert driver.handle(report(0, 2)) == [
        to(0, Throttle(round=0)),
        Emit(event=Throttled(time_s=NOW_S, rank=0, round=0, num_batches_ahead=2)),
        to(0, start_epoch(0, 32, 32)),
    ]
    return driver


def test_rank_too_far_ahead_is_throttled_once_a_round() -> None:
    driver = _throttled()
    commands = driver.handle(report(0, 2))
    assert not any(isinstance(send.message, Throttle) for send in sends(commands))
    assert request(0, 0) in driver.handle(report(1, 1, ms=25.0), window_done(0), window_done(1))


def test_throttled_rank_is_not_left_waiting_for_a_slow_rank_that_runs_dry() -> None:
    options = LocalOptions(anchor=4, max_batch_diff=0, max_overshoot=0)
    driver = Driver(epoch_size=4 * BATCH_SIZE, options=options)
    assert [send.message for send in sends(driver.handle(report(0, 1)))] == [Throttle(round=0)]
    assert driver.handle(window_done(0)) == []
    dealt = [
        send.message.plan.size for send in sends(driver.all) if send.rank == 1 and isinstance(send.message, StartEpoch)
    ]
    commands = driver.handle(report(1, sum(dealt) // BATCH_SIZE, ms=25.0))
    assert sends(commands)[-4:-2] == [request(0, 0), request(1, 0)]


def test_rank_is_not_throttled_for_being_ahead_of_one_without_work() -> None:
    options = LocalOptions(anchor=4, max_batch_diff=2, max_overshoot=0)
    driver = Driver(epoch_size=8 * BATCH_SIZE, num_epochs=1, options=options)
    driver.handle(report(0, 2))
    slow = driver.handle(report(1, 2, ms=10_000.0))
    assert not any(isinstance(send.message, StartEpoch) for send in sends(slow) if send.rank == 1)
    driver.handle(report(0, 2), report(0, 1))
    assert not any(isinstance(event, Throttled) for event in events(driver.all))
