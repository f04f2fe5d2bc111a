"""Local SGD over an all-reduce: ranks meet by themselves, and the coordinator sees to it that they all come."""

from __future__ import annotations

from flodl_core.commands import CloseMeetings, Command, Emit, EpochReady
from flodl_core.events import AnchorChanged, EpochEnded, StepWindow, SyncEvent
from flodl_core.local_options import LocalOptions
from flodl_core.messages import StopRequested, SyncNow
from tests.flodl_core.local_driver import NOW_S, Driver, run_ended
from tests.flodl_core.message_factories import (
    BATCH_SIZE,
    answer,
    averaged,
    computation,
    dying,
    events,
    exiting,
    last_snapshot,
    open_round,
    report,
    sends,
    shutdown,
    start_epoch,
    sync_done,
    to,
    window_done,
)

OPTIONS = LocalOptions(meets=True, anchor=4, max_overshoot=0)


def _measured() -> Driver:
    """Rank 0 takes 10 ms a batch and rank 1 25 ms; both have done two batches and have more, in round 0."""
    driver = Driver(options=OPTIONS)
    driver.handle(report(0, 2), report(1, 2, ms=25.0))
    return driver


def test_next_round_is_opened_once_with_the_first_window_that_ends() -> None:
    driver = _measured()
    assert driver.handle(window_done(1)) == [
        to(0, open_round(1, deadline_ms=100.0, planned=10, total=14)),
        to(1, open_round(1, deadline_ms=100.0, planned=4, total=14)),
    ]
    assert driver.handle(window_done(0)) == []


def test_average_closes_the_round_and_its_cost_moves_the_anchor() -> None:
    driver = _measured()
    driver.handle(window_done(1), window_done(0))
    assert driver.handle(averaged(0, weights={0: 16, 1: 16}, global_step=4, cost_ms=3.0)) == [
        Emit(
            event=SyncEvent(
                time_s=NOW_S,
                round=0,
                epoch=None,
                global_step=4,
                num_syncs=1,
                duration_ms=3.0,
                wait_ms={},
                weights={0: 16, 1: 16},
                divergence={},
                excluded=(),
                anchor=4,
            )
        ),
        # 3 ms over 50 ms are twice the 3 % that averaging may cost
        Emit(event=AnchorChanged(time_s=NOW_S, round=0, before=4, after=8)),
    ]
    assert driver.handle(sync_done(0), sync_done(1)) == []
    assert driver.handle(window_done(0, 1)) == [
        to(0, open_round(2, deadline_ms=250.0, planned=25, total=35)),
        to(1, open_round(2, deadline_ms=250.0, planned=10, total=35)),
    ]


def test_rank_without_data_is_sent_to_the_meeting_where_the_others_will_wait() -> None:
    driver = Driver(world_size=3, epoch_size=5 * BATCH_SIZE, num_epochs=1, options=OPTIONS)
    first = driver.handle(report(2, 1))
    dealt = [send for send in sends(driver.all) if send.rank == 2 and send.message == start_epoch(0, 32, 8)]
    assert dealt == [to(2, start_epoch(0, 32, 8))]
    assert first == [to(2, SyncNow(round=0))]
    assert driver.handle(window_done(2)) != []
    assert driver.handle(sync_done(2)) == [to(2, SyncNow(round=1))]


def test_rank_without_data_is_told_once_for_each_meeting() -> None:
    driver = Driver(world_size=3, epoch_size=5 * BATCH_SIZE, num_epochs=1, options=OPTIONS)
    driver.handle(report(2, 1), window_done(2))
    assert driver.handle(sync_done(2)) == [to(2, SyncNow(round=1))]
    assert driver.handle(sync_done(2)) == []


def test_all_ranks_meet_when_an_epoch_has_been_trained() -> None:
    driver = Driver(epoch_size=4 * BATCH_SIZE, options=OPTIONS)
    driver.handle(report(0, 2))
    commands = driver.handle(report(1, 2, ms=25.0))
    assert [send for send in sends(commands) if isinstance(send.message, SyncNow)] == [
        to(0, SyncNow(round=0)),
        to(1, SyncNow(round=0)),
    ]
    assert [send.message for send in sends(commands) if send.message == start_epoch(1, 0, 8)] == [start_epoch(1, 0, 8)]


def _complete() -> tuple[Driver, list[Command]]:
    driver = Driver(epoch_size=4 * BATCH_SIZE, num_epochs=1, options=OPTIONS)
    driver.handle(report(0, 2), report(1, 2, ms=25.0), window_done(0), window_done(1))
    return driver, driver.handle(averaged(0, epochs=(0,), weights={0: 16, 1: 16}, global_step=4))


def test_average_that_completes_the_last_epoch_ends_the_run() -> None:
    driver, commands = _complete()
    assert [event for event in events(commands) if isinstance(event, StepWindow | EpochEnded)][-1] == EpochEnded(
        time_s=NOW_S, epoch=0, num_samples=32, global_step=4
    )
    ready, *rest = commands[-4:]
    assert isinstance(ready, EpochReady)
    assert (ready.metrics.epoch, ready.metrics.num_samples, ready.payload) == (0, 32, "mean")
    assert rest == [shutdown(0, hand_in=False), shutdown(1, hand_in=False), CloseMeetings()]
    assert driver.handle(sync_done(0), sync_done(1), exiting(0)) == []
    assert driver.handle(exiting(1)) == run_ended("completed", global_step=4, payload=None)


def test_nobody_is_sent_to_a_meeting_after_the_last() -> None:
    driver, _ = _complete()
    driver.handle(sync_done(0), sync_done(1), window_done(0, 1))
    assert [send for send in sends(driver.all) if send.message == SyncNow(round=1)] == []
    assert driver.shutdowns() == [0, 1]


def test_stop_closes_the_meetings_at_once() -> None:
    driver = _measured()
    driver.handle(window_done(1))
    assert driver.handle(StopRequested()) == [shutdown(0, hand_in=True), shutdown(1, hand_in=True), CloseMeetings()]
    assert driver.handle(window_done(0)) == []


def test_meeting_that_takes_place_while_the_run_stops_counts() -> None:
    driver = _measured()
    driver.handle(window_done(1), window_done(0), StopRequested())
    commands = driver.handle(averaged(0, weights={0: 16, 1: 16}, global_step=4))
    assert [event.round for event in events(commands) if isinstance(event, SyncEvent)] == [0]
    assert sends(commands) == []
    driver.handle(last_snapshot(0, num_samples=0), last_snapshot(1, num_samples=0), exiting(0))
    final = computation(driver.handle(exiting(1)))
    assert final.tally.weights == {0: 1}, "nobody has trained since: the consensus stays"
    assert driver.handle(answer(final)) == run_ended("cancelled", global_step=4)


def test_last_epochs_average_that_is_taken_while_the_run_stops_still_reports_the_epoch() -> None:
    driver = Driver(epoch_size=4 * BATCH_SIZE, num_epochs=1, options=OPTIONS)
    driver.handle(report(0, 2), report(1, 2, ms=25.0), window_done(0), window_done(1), StopRequested())
    commands = driver.handle(averaged(0, epochs=(0,), weights={0: 16, 1: 16}, global_step=4))
    assert [command.metrics.epoch for command in commands if isinstance(command, EpochReady)] == [0]
    assert sends(commands) == []
    assert driver.shutdowns() == [0, 1]


def test_death_at_a_meeting_lets_the_survivors_hand_in() -> None:
    driver = _measured()
    driver.handle(window_done(1))
    assert driver.handle(dying(1))[1:] == [shutdown(0, hand_in=True), CloseMeetings()]
    driver.handle(last_snapshot(0))
    final = computation(driver.handle(exiting(0)))
    assert driver.handle(answer(final)) == run_ended("failed", global_step=4)
