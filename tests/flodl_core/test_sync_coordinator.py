from __future__ import annotations

import pytest

from flodl_core.commands import Command, ComputeAverage, Emit, EpochReady, StopMeetings
from flodl_core.coordinator import RunPlan
from flodl_core.errors import NonFiniteError
from flodl_core.events import EpochEnded, RunStarted, StepWindow, SyncEvent, WorkerLost
from flodl_core.messages import FINAL_ROUND, CallbackFailed, Snapshot, StartEpoch, StopRequested, ToCoordinator, Update
from flodl_core.run_book import STEP_WINDOW_S
from flodl_core.sync_coordinator import ROUNDS_PER_PLAN, SyncCoordinator
from flodl_core.tally import Tally
from tests.flodl_core.local_driver import NOW_S, run_ended
from tests.flodl_core.message_factories import (
    BATCH_SIZE,
    answer,
    averaged,
    computation,
    dying,
    events,
    exiting,
    last_snapshot,
    report,
    reported_epochs,
    sends,
    shutdown,
    snapshot,
    start_epoch,
    to,
)

EPOCH_SIZE = 4 * BATCH_SIZE


class Driver:
    """A coordinator, and the commands that it gave."""

    def __init__(
        self,
        *,
        mediated: bool,
        world_size: int = 2,
        num_epochs: int = 1,
        epoch_size: int = EPOCH_SIZE,
        is_progressive: bool = False,
        max_steps: int | None = None,
        max_time_s: float | None = None,
        ratios: tuple[float, ...] | None = None,
    ) -> None:
        plan = RunPlan(
            devices=tuple(f"cpu{rank}" for rank in range(world_size)),
            epoch_size=epoch_size,
            batch_size=BATCH_SIZE,
            num_epochs=num_epochs,
            max_steps=max_steps,
            max_time_s=max_time_s,
        )
        self.coordinator = SyncCoordinator(
            plan, mediated=mediated, is_progressive=is_progressive, ratios=ratios, start_s=0.0
        )
        self.all = self.coordinator.start()

    def deadline_s(self) -> float | None:
        return self.coordinator.next_deadline_s

    def handle(self, *messages: ToCoordinator, now_s: float = NOW_S) -> list[Command]:
        """Give the messages and return what the last of them led to."""
        commands: list[Command] = []
        for message in messages:
            commands = self.coordinator.handle(message, now_s)
            self.all += commands
        return commands


def _update(
    rank: int,
    round_: int = 0,
    *,
    global_step: int = 2,
    payload: object = "mean",
    is_excluded: bool = False,
    stop: bool = False,
    leader: int = 0,
) -> Command:
    message = Update(
        round=round_, payload=payload, global_step=global_step, is_excluded=is_excluded, stop=stop, leader=leader
    )
    return to(rank, message)


def _gradients(*, round_: int = 0, sick: tuple[int, ...] = ()) -> tuple[Snapshot, Snapshot]:
    first, second = (snapshot(rank, round_=round_, is_finite=rank not in sick) for rank in (0, 1))
    return first, second


# Epochs


def test_workers_know_two_epochs_and_get_the_next_as_one_ends() -> None:
    driver = Driver(mediated=False, num_epochs=4)
    assert driver.all == [
        Emit(event=RunStarted(time_s=0.0, devices=("cpu0", "cpu1"), num_epochs=4, num_samples=EPOCH_SIZE)),
        *[to(rank, start_epoch(epoch, 0, EPOCH_SIZE)) for epoch in (0, 1) for rank in (0, 1)],
    ]
    commands = driver.handle(report(0, 2), report(1, 2))
    assert sends(commands) == [to(rank, start_epoch(2, 0, EPOCH_SIZE)) for rank in (0, 1)]
    driver.handle(averaged(1, epochs=(0,)))
    assert driver.coordinator.current_epoch == 1


def test_epoch_that_is_dealt_bit_by_bit_keeps_workers_a_plan_ahead() -> None:
    size = ROUNDS_PER_PLAN * 2 * BATCH_SIZE
    driver = Driver(mediated=False, epoch_size=2 * size + 5, is_progressive=True)
    assert [to(0, start_epoch(0, offset, size)) for offset in (0, size)] == sends(driver.all)[::2]
    assert sends(driver.handle(report(0, ROUNDS_PER_PLAN))) == []
    commands = driver.handle(report(1, ROUNDS_PER_PLAN))
    assert sends(commands) == [to(rank, start_epoch(0, 2 * size, 5)) for rank in (0, 1)]


@pytest.mark.parametrize("max_steps", [5, 6])
def test_limit_of_steps_ends_the_run_with_the_round_that_reaches_it(max_steps: int) -> None:
    driver = Driver(mediated=False, num_epochs=4, max_steps=max_steps)
    dealt = [send.message for send in sends(driver.all) if send.rank == 0]
    assert dealt == [start_epoch(0, 0, EPOCH_SIZE), start_epoch(1, 0, 2 * BATCH_SIZE)], "two rounds and one"
    driver.handle(report(0, 2), report(1, 2), averaged(1, epochs=(0,)))
    assert not driver.coordinator.is_stopping
    commands = driver.handle(report(0, 1, epoch=1), report(1, 1, epoch=1))
    assert commands[:3] == [StopMeetings(), *[shutdown(rank, hand_in=True) for rank in (0, 1)]]


@pytest.mark.parametrize(
    ("epoch_size", "ratios", "max_steps", "dealt"),
    [
        pytest.param(1, None, 3, [1, 1, 1], id="epochs of a sample"),
        pytest.param(2 * BATCH_SIZE + 1, None, 4, [17, 16], id="last round of a sample"),
        pytest.param(8 * BATCH_SIZE, (1.0, 1000.0), 3, [3 * 16], id="a rank whose share is nothing"),
    ],
)
def test_limit_of_steps_counts_no_step_of_a_rank_without_samples(
    epoch_size: int, ratios: tuple[float, ...] | None, max_steps: int, dealt: list[int]
) -> None:
    driver = Driver(mediated=False, epoch_size=epoch_size, num_epochs=9, max_steps=max_steps, ratios=ratios)
    for epoch in range(len(dealt)):
        driver.handle(report(0, epoch=epoch, num_samples=epoch_size), averaged(epoch, epochs=(epoch,)))
    plans = [send.message.plan for send in sends(driver.all) if send.rank == 0 and isinstance(send.message, StartEpoch)]
    assert [plan.size for plan in plans] == dealt


def test_epoch_that_ends_at_the_limit_of_steps_is_reported_first() -> None:
    driver = Driver(mediated=False, num_epochs=4, max_steps=4)
    assert StopMeetings() not in driver.handle(report(0, 2), report(1, 2))
    commands = driver.handle(averaged(1, epochs=(0,)))
    assert any(isinstance(command, EpochReady) for command in commands)
    assert driver.coordinator.is_stopping


def test_limit_of_time_ends_the_run_as_completed() -> None:
    driver = Driver(mediated=False, num_epochs=4, max_time_s=60.0)
    assert driver.deadline_s() == 60.0
    assert driver.coordinator.tick(59.9) == []
    assert StopMeetings() in driver.coordinator.tick(60.0)
    assert driver.deadline_s() is None
    driver.handle(last_snapshot(0), exiting(0), exiting(1), averaged(FINAL_ROUND))
    assert driver.coordinator.finished is not None
    assert driver.coordinator.finished.status == "completed"


def test_limit_of_time_that_passes_while_the_workers_end_changes_nothing() -> None:
    driver = Driver(mediated=False, max_time_s=60.0)
    commands = driver.handle(report(0, 2), report(1, 2), averaged(1, epochs=(0,)))
    assert sends(commands) == [shutdown(rank, hand_in=False) for rank in (0, 1)]
    assert driver.deadline_s() is None, "there would be nothing to do, over and over"
    assert driver.coordinator.tick(60.0) == []


def test_run_of_one_epoch_starts_one() -> None:
    assert len(sends(Driver(mediated=False).all)) == 2


def test_epoch_ends_with_the_leaders_last_step_and_everybodys_reports_in_either_order() -> None:
    leader_first, leader_last = Driver(mediated=False, num_epochs=2), Driver(mediated=False, num_epochs=2)
    stepped = averaged(1, epochs=(0,), payload="state of the leader")
    assert leader_first.handle(report(0, 2)) == []
    assert leader_first.handle(stepped) == []
    assert leader_first.coordinator.epoch_samples_done == 16
    assert leader_last.handle(report(0, 2), report(1, 2)) == []
    for commands in (leader_first.handle(report(1, 2)), leader_last.handle(stepped)):
        *windows, ended, ready = commands
        assert [event.rank for event in events(windows) if isinstance(event, StepWindow)] == [0, 1]
        assert ended == Emit(event=EpochEnded(time_s=NOW_S, epoch=0, num_samples=EPOCH_SIZE, global_step=4))
        assert isinstance(ready, EpochReady)
        assert (ready.metrics.epoch, ready.metrics.num_samples, ready.payload) == (0, EPOCH_SIZE, "state of the leader")


def test_epoch_whose_last_report_comes_after_the_next_has_begun_is_still_reported_in_order() -> None:
    driver = Driver(mediated=False, num_epochs=2)
    driver.handle(report(0, 2), averaged(1, epochs=(0,)), report(0, 2, epoch=1), averaged(3, epochs=(1,)))
    assert reported_epochs(driver.handle(report(1, 2))) == [0]
    assert reported_epochs(driver.handle(report(1, 2, epoch=1))) == [1]


def test_last_epoch_ends_the_run_and_every_worker_once() -> None:
    driver = Driver(mediated=False)
    commands = driver.handle(report(0, 2), report(1, 2), averaged(1, epochs=(0,)))
    assert sends(commands) == [shutdown(0, hand_in=False), shutdown(1, hand_in=False)]
    assert driver.coordinator.epoch_samples_done == 0
    assert driver.handle(StopRequested(), exiting(0)) == []
    assert driver.handle(exiting(1)) == run_ended("completed", global_step=4, payload=None)


def test_single_device_is_the_same_with_nothing_to_average() -> None:
    driver = Driver(mediated=False, world_size=1)
    driver.handle(report(0, 4), averaged(epochs=(0,)))
    assert driver.handle(exiting(0)) == run_ended("completed", global_step=4, payload=None)
    assert driver.coordinator.num_syncs == 0


# Events


def test_averages_are_told_a_few_at_a_time() -> None:
    driver = Driver(mediated=False)
    early = driver.handle(report(0, 1, num_syncs=1, sync_ms=0.5), now_s=STEP_WINDOW_S - 0.1)
    late = driver.handle(report(0, 1, round_=1, num_syncs=2, sync_ms=1.5), now_s=STEP_WINDOW_S + 0.1)
    assert [event for event in events(early) if isinstance(event, SyncEvent)] == []
    assert [event for event in events(late) if isinstance(event, SyncEvent)] == [
        SyncEvent(
            time_s=STEP_WINDOW_S + 0.1,
            round=1,
            epoch=None,
            global_step=2,
            num_syncs=3,
            duration_ms=2.0,
            wait_ms={},
            weights={},
            divergence={},
            excluded=(),
            anchor=1,
        )
    ]
    assert driver.coordinator.num_syncs == 3
    assert driver.coordinator.anchor == 1


def test_averages_that_were_not_told_yet_are_told_before_the_epoch_ends() -> None:
    driver = Driver(mediated=False)
    driver.handle(report(0, 2, num_syncs=2), now_s=0.1)
    commands = driver.handle(report(1, 2), averaged(1, epochs=(0,)), now_s=0.15)
    kinds = [type(event) for event in events(commands) if isinstance(event, SyncEvent | EpochEnded)]
    assert kinds == [SyncEvent, EpochEnded]


# Gradients through the coordinator


def test_gradients_of_all_ranks_are_averaged_and_handed_back() -> None:
    driver = Driver(mediated=True)
    first, second = _gradients()
    assert driver.handle(second) == []
    assert driver.handle(first) == [
        ComputeAverage(
            round=0,
            snapshots={1: second, 0: first},
            tally=Tally(
                weights={0: 8, 1: 8},
                num_samples={0: 8, 1: 8},
                excluded=(),
                discarded_samples=0,
                global_step=2,
                epochs=(),
                most_work=0,
            ),
        )
    ]
    assert driver.handle(averaged(0, global_step=2)) == [_update(0), _update(1)]


def test_fast_ranks_next_gradient_waits_for_the_others() -> None:
    driver = Driver(mediated=True)
    command = computation(driver.handle(*_gradients()))
    driver.handle(answer(command))
    first, second = _gradients(round_=1)
    assert driver.handle(first) == []
    assert computation(driver.handle(second)).round == 1


def test_rank_without_samples_does_not_lead() -> None:
    driver = Driver(mediated=True)
    command = computation(driver.handle(snapshot(0, num_samples=0, total_batches=0), snapshot(1)))
    assert driver.handle(answer(command)) == [_update(rank, global_step=1, leader=1) for rank in (0, 1)]


def test_gradient_that_is_not_finite_is_left_out_and_its_rank_told_so() -> None:
    driver = Driver(mediated=True)
    command = computation(driver.handle(*_gradients(sick=(1,))))
    assert command.tally.weights == {0: 8}
    assert driver.handle(answer(command)) == [_update(0), _update(1, is_excluded=True)]
    assert driver.coordinator.book.discarded_samples == 8


def test_run_fails_where_no_gradient_is_finite() -> None:
    driver = Driver(mediated=True)
    commands = driver.handle(*_gradients(sick=(0, 1)))
    assert commands[0] == StopMeetings()
    assert sends(commands) == [
        shutdown(0, hand_in=True),
        shutdown(1, hand_in=True),
        _update(0, global_step=0, payload=None, stop=True),
        _update(1, global_step=0, payload=None, stop=True),
    ]
    commands = driver.handle(dying(0), dying(1))  # an update without a gradient ends a worker
    error = driver.coordinator.callback_error
    assert isinstance(error, NonFiniteError)
    assert commands[-2:] == run_ended("failed", global_step=0, payload=None, error=error)


# Stop


def test_stop_reaches_ranks_that_meet_with_a_meetings_result() -> None:
    driver = Driver(mediated=False)
    commands = driver.handle(StopRequested())
    assert commands[0] == StopMeetings()
    assert sends(commands) == [shutdown(0, hand_in=True), shutdown(1, hand_in=True)]
    assert driver.handle(StopRequested()) == []


def test_stop_between_rounds_reaches_ranks_with_the_next_average() -> None:
    driver = Driver(mediated=True)
    driver.handle(_gradients()[0], StopRequested())
    command = computation(driver.handle(_gradients()[1]))
    assert driver.handle(answer(command)) == [_update(0, stop=True), _update(1, stop=True)]


def test_stop_while_an_average_is_computed_reaches_ranks_with_it() -> None:
    driver = Driver(mediated=True)
    command = computation(driver.handle(*_gradients()))
    driver.handle(StopRequested())
    assert driver.handle(answer(command)) == [_update(0, stop=True), _update(1, stop=True)]


def test_stopped_run_gives_the_leaders_replica() -> None:
    driver = Driver(mediated=True)
    command = computation(driver.handle(*_gradients()))
    driver.handle(StopRequested(), answer(command), report(0), report(1), last_snapshot(0), exiting(0))
    final = computation(driver.handle(exiting(1)))
    assert final.tally.weights == {0: 8}
    assert driver.handle(answer(final)) == run_ended("cancelled", global_step=2)


def test_averages_of_a_stopped_run_are_told_before_it_ends() -> None:
    driver = Driver(mediated=False)
    now_s = STEP_WINDOW_S / 2
    driver.handle(StopRequested(), report(0, num_syncs=1, sync_ms=2.0), report(1), exiting(0), now_s=now_s)
    told = [event for event in events(driver.handle(exiting(1), now_s=now_s)) if isinstance(event, SyncEvent)]
    assert [(event.num_syncs, event.duration_ms) for event in told] == [(1, 2.0)]


def test_stopped_run_that_loses_its_leader_gives_a_survivors_replica() -> None:
    driver = Driver(mediated=True, world_size=3)
    command = computation(driver.handle(snapshot(0), snapshot(1), snapshot(2)))
    driver.handle(StopRequested(), dying(0), answer(command), last_snapshot(1), last_snapshot(2), exiting(1))
    final = computation(driver.handle(exiting(2)))
    assert final.tally.weights == {1: 8}, "replicas are the same: one stands for all"


def test_no_epoch_is_started_after_a_stop() -> None:
    driver = Driver(mediated=False, num_epochs=4)
    commands = driver.handle(StopRequested(), report(0, 2), report(1, 2), averaged(1, epochs=(0,)))
    assert reported_epochs(commands) == [0]
    assert sends(commands) == []


def test_callback_that_failed_fails_the_run() -> None:
    driver = Driver(mediated=False)
    error = ValueError("bad evaluation")
    driver.handle(CallbackFailed(error=error), last_snapshot(0), exiting(0))
    final = computation(driver.handle(exiting(1)))
    assert driver.handle(answer(final)) == run_ended("failed", global_step=0, error=error)


# Death


def test_lost_rank_does_not_hold_up_the_gradients_of_the_others() -> None:
    driver = Driver(mediated=True, world_size=3)
    driver.handle(snapshot(1), snapshot(2))
    commands = driver.handle(dying(0))
    assert commands[0] == Emit(event=WorkerLost(time_s=NOW_S, rank=0, error="rank 0: RuntimeError: out of memory"))
    command = computation(commands)
    assert command.tally.weights == {1: 8, 2: 8}
    assert sends(commands) == [shutdown(1, hand_in=True), shutdown(2, hand_in=True)]
    assert driver.handle(answer(command)) == [_update(1, stop=True, leader=1), _update(2, stop=True, leader=1)]


def test_gradient_of_a_rank_that_was_lost_is_dropped() -> None:
    driver = Driver(mediated=True, world_size=3)
    driver.handle(snapshot(2), dying(2), snapshot(0))
    assert computation(driver.handle(snapshot(1))).tally.weights == {0: 8, 1: 8}


def test_rank_lost_while_an_average_is_computed_gets_no_answer() -> None:
    driver = Driver(mediated=True)
    command = computation(driver.handle(*_gradients()))
    driver.handle(dying(0))
    assert driver.handle(answer(command)) == [_update(1, stop=True, leader=1)]


def test_run_that_loses_every_rank_fails_without_a_state() -> None:
    driver = Driver(mediated=False)
    driver.handle(dying(0))
    assert driver.handle(dying(1))[-2:] == run_ended("failed", global_step=0, payload=None)
    assert [failure.rank for failure in driver.coordinator.failures] == [0, 1]
