"""The coordinator: a state machine without I/O.

``handle(message, now_s)`` and ``tick(now_s)`` return what is to be done as a list of commands; nothing here reads a
queue, a lock, a clock or a tensor. Its guarantees, for any order in which the messages of different ranks arrive:

- Every sample of every epoch is dealt to exactly one rank.
- Never two averages at once; an average closes a round, and rounds are numbered without gaps.
- Epochs are reported in order, each once all its samples are trained and in an average.
- After a stop request, a failure or the last epoch's average, each worker is told to end exactly once, and the run
  finishes when the last of them has.

This module holds what all policies share: members, books, and the way to the end. ``LocalCoordinator`` (cadence and
async) and ``SyncCoordinator`` add when and how replicas meet.
"""

import abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flodl_core.commands import CloseMeetings, Command, ComputeAverage, Emit, EpochReady, Finish, Send
from flodl_core.errors import NonFiniteError, WorkerFailure
from flodl_core.events import EpochEnded, Event, RunEnded, RunStarted, WorkerLost
from flodl_core.messages import (
    FINAL_ROUND,
    Averaged,
    AveragingFailed,
    BatchesDone,
    CallbackFailed,
    Payload,
    Shutdown,
    Snapshot,
    StopRequested,
    ToCoordinator,
    ToWorker,
    WorkerExiting,
)
from flodl_core.run_book import RunBook
from flodl_core.tally import tally


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What a coordinator has to know of a run.

    Attributes:
        devices: Label of each rank's device; their number is the world size.
        epoch_size: Samples trained in an epoch, at least 1.
        batch_size: Samples in a rank's full batch.
        num_epochs: Epochs, at least 1.
        max_steps: Global step at which the run ends, or None.
        max_time_s: Seconds after its start at which the run ends, or None.
    """

    devices: tuple[str, ...]
    epoch_size: int
    batch_size: int
    num_epochs: int
    max_steps: int | None = None
    max_time_s: float | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks at the start."""
        return len(self.devices)


class Coordinator(abc.ABC):
    """Owned by the coordinator's loop; see the module for what it guarantees.

    Args:
        plan: The run.
        start_s: When it starts, on the clock of all later ``now_s``.
    """

    def __init__(self, plan: RunPlan, *, start_s: float) -> None:
        self.plan = plan
        self.book = RunBook(plan.devices, start_s=start_s, epoch_size=plan.epoch_size)
        self.members = set(range(plan.world_size))
        self.failures: list[WorkerFailure] = []
        self.callback_error: BaseException | None = None
        self.num_syncs = 0
        self.finished: Finish | None = None
        self._stop_status: str | None = None
        self._is_shut_down = False
        self._last_snapshots: dict[int, Snapshot] = {}
        self._out: list[Command] = []
        self._now_s = start_s
        self._ends_s = None if plan.max_time_s is None else start_s + plan.max_time_s

    # What the loop calls

    def start(self) -> list[Command]:
        """Open the run: the first commands."""
        self._emit(
            RunStarted(
                time_s=0.0,
                devices=self.plan.devices,
                num_epochs=self.plan.num_epochs,
                num_samples=self.plan.epoch_size,
            )
        )
        self._on_start()
        return self._flush()

    def handle(self, message: ToCoordinator, now_s: float) -> list[Command]:
        """Take one message.

        Args:
            message: From a worker, from the averaging thread, or from the run's owner.
            now_s: The time, in seconds; never less than before.

        Returns:
            What is to be done, in order.
        """
        self._now_s = now_s
        match message:
            case StopRequested():
                self._stop("cancelled")
            case CallbackFailed():
                self.callback_error = self.callback_error or message.error
                self._stop("failed")
            case AveragingFailed():
                self._on_averaging_failed(message)
            case WorkerExiting():
                self._on_exit(message)
            case Snapshot() if message.entry.round == FINAL_ROUND:
                self._last_snapshots[message.entry.rank] = message
            case Averaged() if message.round == FINAL_ROUND:
                self._finish(payload=message.payload)
            case BatchesDone():
                self._out.extend(Emit(event=event) for event in self.book.add(message, now_s))
                self._on_message(message)
            case _:
                self._on_message(message)
        return self._flush()

    def tick(self, now_s: float) -> list[Command]:
        """Take notice of the time; to be called at least at ``next_deadline_s``."""
        self._now_s = now_s
        if self._ends_s is not None and now_s >= self._ends_s:
            self._stop("completed")
        self._on_tick()
        return self._flush()

    @property
    def next_deadline_s(self) -> float | None:
        """When ``tick`` has something to do, or None."""
        is_ending = self.is_stopping or self._is_shut_down
        deadlines = [self._policy_deadline_s, None if is_ending else self._ends_s]
        return min((deadline_s for deadline_s in deadlines if deadline_s is not None), default=None)

    @property
    def _policy_deadline_s(self) -> float | None:
        return None

    @property
    def anchor(self) -> int:
        """Batches that the slowest rank does between two averages."""
        return 1

    @property
    @abc.abstractmethod
    def current_epoch(self) -> int:
        """The lowest epoch of which a sample has not been trained; the number of epochs at the end."""

    @property
    @abc.abstractmethod
    def epoch_samples_done(self) -> int:
        """Samples of the current epoch that have been trained."""

    # What policies add

    @abc.abstractmethod
    def _on_start(self) -> None: ...

    @abc.abstractmethod
    def _on_message(self, message: ToCoordinator) -> None: ...

    def _on_tick(self) -> None:  # noqa: B027  (a policy without deadlines has nothing to do)
        ...

    @abc.abstractmethod
    def _on_lost(self, rank: int) -> None:
        """A member has gone; the run is stopping."""

    @abc.abstractmethod
    def _on_stop(self) -> None:
        """The run shall stop: bring it to ``_shut_down`` without losing what was trained."""

    @abc.abstractmethod
    def _give_up_average(self) -> None:
        """The average under way will not come; the run is stopping."""

    # The way to the end

    @property
    def is_stopping(self) -> bool:
        """Whether the run ends before its last epoch."""
        return self._stop_status is not None

    def _stop(self, status: str) -> None:
        if self._is_shut_down and self._stop_status is None:
            return  # all epochs are done: the workers are ending already
        if self._stop_status is None or status == "failed":
            first = self._stop_status is None
            self._stop_status = status
            if first:
                self._on_stop()

    def _shut_down(self, *, hand_in: Iterable[int]) -> None:
        """Tell every member to end; those in ``hand_in`` give their replica first."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        givers = set(hand_in)
        for rank in sorted(self.members):
            self._send(rank, Shutdown(hand_in=rank in givers))
        self._out.append(CloseMeetings())

    def _on_exit(self, message: WorkerExiting) -> None:
        if message.rank not in self.members:
            return  # it had hung, was given up, and came to in this very moment
        self.members.discard(message.rank)
        if message.failure is not None:
            self.failures.append(message.failure)
            self._emit(WorkerLost(time_s=self._time_s, rank=message.rank, error=str(message.failure)))
            self._on_lost(message.rank)
            self._stop("failed")
        if not self.members:
            self._settle()

    def _on_averaging_failed(self, message: AveragingFailed) -> None:
        self.callback_error = self.callback_error or message.error
        if message.round == FINAL_ROUND:
            self._finish(payload=None)
            return
        self._stop("failed")
        self._give_up_average()

    def _of_the_end(self, snapshots: dict[int, Snapshot]) -> dict[int, Snapshot]:
        """Which of the replicas that were handed in make the run's result."""
        return snapshots

    def _settle(self) -> None:
        self._out.extend(Emit(event=event) for event in self.book.close_windows(self._now_s))
        snapshots = self._of_the_end(self._last_snapshots)
        if not snapshots:
            self._finish(payload=None)
            return
        terms = tally([snapshot.entry for snapshot in snapshots.values()], epochs=(), epoch_size=1)
        if terms is None:
            self._stop_status = "failed"
            self.callback_error = self.callback_error or NonFiniteError("no replica has finite parameters")
            self._finish(payload=None)
            return
        self.book.discarded_samples += terms.discarded_samples
        self._out.append(ComputeAverage(round=FINAL_ROUND, snapshots=snapshots, tally=terms))

    def _finish(self, *, payload: Payload | None) -> None:
        status = "failed" if self.callback_error is not None else self._stop_status or "completed"
        self._emit(RunEnded(time_s=self._time_s, status=status, global_step=self.book.global_step))
        self.finished = Finish(status=status, payload=payload, error=self.callback_error)
        self._out.append(self.finished)

    # Small things

    @property
    def _time_s(self) -> float:
        return self.book.time_s(self._now_s)

    def _send(self, rank: int, message: ToWorker) -> None:
        self._out.append(Send(rank=rank, message=message))

    def _send_all(self, message: ToWorker) -> None:
        for rank in sorted(self.members):
            self._send(rank, message)

    def _emit(self, event: Event) -> None:
        self._out.append(Emit(event=event))

    def _end_epochs(self, epochs: Sequence[int], payload: Payload | None) -> None:
        """Report epochs whose samples are all in an average; the last of them is evaluated on it."""
        if epochs:
            self._out.extend(Emit(event=event) for event in self.book.close_windows(self._now_s))
        for epoch in epochs:
            self._emit(
                EpochEnded(
                    time_s=self._time_s,
                    epoch=epoch,
                    num_samples=self.plan.epoch_size,
                    global_step=self.book.global_step,
                )
            )
            self._out.append(EpochReady(metrics=self.book.end_epoch(epoch), payload=payload))

    def _flush(self) -> list[Command]:
        commands, self._out = self._out, []
        return commands
