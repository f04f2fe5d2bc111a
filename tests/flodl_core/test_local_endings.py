"""How Local SGD runs end, through the CPU: death, stop, completion."""

from __future__ import annotations

from collections import deque

from flodl_core.commands import CloseMeetings, Command, ComputeAverage, Emit, Finish, Send
from flodl_core.errors import NonFiniteError
from flodl_core.events import WorkerLost
from flodl_core.local_options import LocalOptions
from flodl_core.messages import (
    FINAL_ROUND,
    CallbackFailed,
    RequestParams,
    Snapshot,
    StartEpoch,
    StopRequested,
    ToCoordinator,
)
from flodl_core.worker_ledger import WorkerLedger
from tests.flodl_core.local_driver import (
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
    computation,
    dying,
    exiting,
    last_snapshot,
    report,
    reported_epochs,
    sends,
    shutdown,
    snapshot,
    update,
    window_done,
)

# Death


def test_death_between_request_and_snapshot_does_not_hold_up_the_others() -> None:
    driver = collecting()
    driver.handle(both_snapshots()[0])
    died = dying(1)
    assert died.failure is not None
    commands = driver.handle(died)
    lost = WorkerLost(time_s=NOW_S, rank=1, error="rank 1: RuntimeError: out of memory")
    assert commands[:-1] == [Emit(event=lost)]
    command = computation(commands)
    assert command.tally.weights == {0: 16}
    assert driver.handle(answer(command)) == [
        sync_event(global_step=4, weights={0: 16}),
        update(0, 0, global_step=4),
        shutdown(0, hand_in=True),
        CloseMeetings(),
    ]
    driver.handle(last_snapshot(0))
    final = computation(driver.handle(exiting(0)))
    assert (final.round, final.tally.weights) == (FINAL_ROUND, {0: 8})
    assert driver.handle(answer(final)) == run_ended("failed", global_step=4)
    assert driver.coordinator.failures == [died.failure]


def test_death_of_all_that_were_awaited_ends_the_round() -> None:
    driver = collecting()
    assert [type(command) for command in driver.handle(dying(0))] == [Emit]
    commands = driver.handle(dying(1))
    assert commands[-2:] == run_ended("failed", global_step=4, payload=None)
    assert driver.shutdowns() == []


def test_rank_that_handed_in_its_snapshot_and_died_is_in_the_average_and_gets_no_answer() -> None:
    driver = collecting()
    driver.handle(both_snapshots()[1])
    driver.handle(dying(1))
    command = computation(driver.handle(both_snapshots()[0]))
    assert command.tally.weights == {0: 16, 1: 16}
    assert {send.rank for send in sends(driver.handle(answer(command)))} == {0}


def test_death_while_ranks_train_stops_the_others_at_once() -> None:
    driver = measured()
    assert driver.handle(dying(0))[1:] == [shutdown(1, hand_in=True), CloseMeetings()]


def test_what_survivors_hand_in_is_averaged_without_those_that_are_not_finite() -> None:
    driver = measured()
    driver.handle(StopRequested(), last_snapshot(0, is_finite=False), last_snapshot(1, num_samples=24), exiting(0))
    command = computation(driver.handle(exiting(1)))
    assert (command.tally.weights, command.tally.excluded) == ({1: 24}, (0,))
    assert driver.coordinator.book.discarded_samples == 8


# Stop


def test_stop_while_ranks_train_makes_them_hand_in_what_they_have() -> None:
    driver = measured()
    assert driver.handle(StopRequested()) == [shutdown(0, hand_in=True), shutdown(1, hand_in=True), CloseMeetings()]
    assert driver.handle(StopRequested()) == []
    assert driver.handle(report(0, 1), window_done(0)) == []
    driver.handle(last_snapshot(0), exiting(0), last_snapshot(1))
    final = computation(driver.handle(exiting(1)))
    assert driver.handle(answer(final)) == run_ended("cancelled", global_step=5)
    assert driver.coordinator.finished == Finish(status="cancelled", payload="mean", error=None)


def test_stop_while_collecting_finishes_the_average_first() -> None:
    driver = collecting()
    assert driver.handle(StopRequested()) == []
    command = computation(driver.handle(*both_snapshots()))
    assert driver.handle(answer(command)) == [
        sync_event(weights={0: 16, 1: 16}),
        update(0, 0, global_step=4),
        update(1, 0, global_step=4),
        shutdown(0, hand_in=True),
        shutdown(1, hand_in=True),
        CloseMeetings(),
    ]


def test_stop_while_computing_finishes_the_average_first() -> None:
    driver, command = computing_average()
    assert driver.handle(StopRequested()) == []
    assert driver.handle(answer(command)) == [
        sync_event(weights={0: 16, 1: 16}),
        update(0, 0, global_step=4),
        update(1, 0, global_step=4),
        shutdown(0, hand_in=True),
        shutdown(1, hand_in=True),
        CloseMeetings(),
    ]


def test_stop_while_collecting_where_the_only_snapshot_is_not_finite_still_ends_the_run() -> None:
    driver = collecting()
    driver.handle(snapshot(0, is_finite=False), StopRequested())
    assert driver.tick(NOW_S + 10.0)[1:] == [shutdown(0, hand_in=True), shutdown(1, hand_in=True), CloseMeetings()]
    assert driver.tick(NOW_S + 20.0) == []
    assert isinstance(driver.coordinator.callback_error, NonFiniteError)


def test_nothing_is_dealt_after_a_stop() -> None:
    driver, _ = computing_average()
    driver.handle(StopRequested())
    assert driver.handle(report(0, 4, round_=1)) == []


def test_callback_that_failed_fails_the_run_with_its_error() -> None:
    driver = measured()
    error, later = ValueError("bad evaluation"), ValueError("another")
    assert driver.handle(CallbackFailed(error=error)) == [
        shutdown(0, hand_in=True),
        shutdown(1, hand_in=True),
        CloseMeetings(),
    ]
    assert driver.handle(CallbackFailed(error=later)) == []
    driver.handle(last_snapshot(0), exiting(0), last_snapshot(1))
    final = computation(driver.handle(exiting(1)))
    assert driver.handle(answer(final)) == run_ended("failed", global_step=4, error=error)


def test_failure_after_a_stop_makes_it_a_failure() -> None:
    driver = measured()
    driver.handle(StopRequested(), last_snapshot(0), exiting(0))
    final = computation(driver.handle(last_snapshot(1), dying(1)))
    assert driver.handle(answer(final)) == run_ended("failed", global_step=4)


# Completion


class Ranks:
    """Workers that train all that is dealt to them, chunk by chunk, and answer every request."""

    def __init__(self, driver: Driver, world_size: int) -> None:
        self._driver = driver
        self._ledgers = [WorkerLedger(rank) for rank in range(world_size)]

    def run(self) -> list[Command]:
        """All commands, until nothing more comes of them."""
        queue, commands = deque(self._driver.all), []
        while queue:
            command = queue.popleft()
            commands.append(command)
            message = self._answer(command)
            if message is not None:
                queue += self._driver.handle(message)
        return commands

    def _answer(self, command: Command) -> ToCoordinator | None:
        match command:
            case ComputeAverage():
                return answer(command)
            case Send(message=StartEpoch(plan=plan)) if plan.size:
                ledger = self._ledgers[command.rank]
                ledger.record(
                    round_=0, epoch=plan.epoch, num_samples=plan.size, is_full=True, busy_ms=1.0, start_s=0.0, end_s=0.0
                )
                return ledger.report(loss_sum=0.0, scalars={}, lr=0.1)
            case Send(message=RequestParams(round=round_)):
                return Snapshot(entry=self._ledgers[command.rank].entry(round_=round_), payload=None)
        return None


def test_completed_run_tells_every_worker_once_and_each_epoch_is_reported_once() -> None:
    driver = Driver(world_size=3, epoch_size=2 * BATCH_SIZE, options=LocalOptions(anchor=1, max_overshoot=1))
    commands = Ranks(driver, 3).run()
    assert reported_epochs(commands) == [0, 1]
    assert driver.shutdowns() == [0, 1, 2]
    assert [shutdown(rank, hand_in=False) in commands for rank in range(3)] == [True] * 3
    assert CloseMeetings() in commands
    assert driver.handle(StopRequested()) == []
    assert driver.handle(CallbackFailed(error=ValueError("too late to stop"))) == []
    assert driver.shutdowns() == [0, 1, 2]


def test_completed_run_begins_every_epoch_on_every_rank() -> None:
    driver = Driver(world_size=3, epoch_size=BATCH_SIZE, options=LocalOptions(anchor=1, max_overshoot=0))
    commands = Ranks(driver, 3).run()
    begun: dict[int, set[int]] = {rank: set() for rank in range(3)}
    for send in sends(commands):
        if isinstance(send.message, StartEpoch):
            begun[send.rank].add(send.message.plan.epoch)
    assert begun == {rank: {0, 1} for rank in range(3)}


def test_run_that_completed_is_not_cancelled_afterwards() -> None:
    driver = Driver(epoch_size=BATCH_SIZE, num_epochs=1, options=LocalOptions(anchor=1))
    Ranks(driver, 2).run()
    driver.handle(StopRequested(), exiting(0))
    commands = driver.handle(exiting(1))
    assert commands == run_ended("completed", global_step=driver.coordinator.book.global_step, payload=None)
