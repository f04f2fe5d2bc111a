"""A worker thread: from its first message to its last.

The loops of the policies are in ``local_worker`` and ``sync_worker``; what they share is here. Order of an end,
whatever its cause: the worker's last message, then it leaves the rendezvous, then its inbox closes.
"""

import abc
import contextlib
import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from flodl_core.channel import Sender, ThreadChannel
from flodl_core.data import Permutations
from flodl_core.devices import intra_op_threads
from flodl_core.errors import ChannelClosed, NonFiniteError, WorkerFailure
from flodl_core.job import Job
from flodl_core.meetings import Contribution, MeetingResult
from flodl_core.messages import FINAL_ROUND, Scalars, Snapshot, ToCoordinator, ToWorker, WorkerExiting
from flodl_core.policies import NonFinitePolicy
from flodl_core.pulse import Pulse
from flodl_core.rendezvous import Rendezvous
from flodl_core.trainer import Trainer
from flodl_core.worker_ledger import WorkerLedger

log = logging.getLogger(__name__)

REPORT_S = 0.005
"""Shortest time between two reports of a worker that trains on."""
MAX_EXCLUDED = 3
"""Averages in a row from which a rank may be left out for not being finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeat:
    """What a worker is given: its place in the run and its ways to the others.

    Attributes:
        rank: Its rank.
        job: The run.
        initial: The model that all replicas start from.
        permutations: Shared by all workers.
        inbox: Its messages.
        outbox: Where its own go.
        rendezvous: Where it meets the others, or None where it does not.
        pulse: Shows that it does not hang.
    """

    rank: int
    job: Job
    initial: nn.Module
    permutations: Permutations
    inbox: ThreadChannel[ToWorker]
    outbox: Sender[ToCoordinator]
    rendezvous: Rendezvous[Contribution, MeetingResult] | None
    pulse: Pulse = field(default_factory=Pulse)


class Worker(abc.ABC):
    """Owned by its thread, which makes it."""

    def __init__(self, seat: WorkerSeat) -> None:
        self.seat = seat
        self.job = seat.job
        self.trainer = Trainer(seat.job, seat.rank, initial=seat.initial, permutations=seat.permutations)
        self.ledger = WorkerLedger(seat.rank)
        self._reported_s = time.perf_counter()
        self._num_excluded = 0

    @abc.abstractmethod
    def run(self) -> None:
        """Train until told to end."""

    def send(self, message: ToCoordinator) -> None:
        """Tell the coordinator."""
        self.seat.outbox.send(message)

    def receive(self) -> ToWorker | None:
        """Wait for the coordinator's next message; None where the channel is closed."""
        self.seat.pulse.rest()
        message = self.seat.inbox.receive()
        self.seat.pulse.beat()
        return message

    def meet(self, contribution: Contribution) -> MeetingResult | None:
        """Wait for the other ranks and take what is averaged; None where the meeting was called off."""
        assert self.seat.rendezvous is not None, "an all-reduce needs a rendezvous"
        self.seat.pulse.rest()
        result = self.seat.rendezvous.enter(self.seat.rank, contribution)
        self.seat.pulse.beat()
        return result

    def flush(self) -> None:
        """Report what has not been reported."""
        if self.ledger.num_unreported == 0:
            return
        self._reported_s = time.perf_counter()
        loss_sum, scalars = self.trainer.take_report()
        self._send_report(loss_sum, scalars)

    def _send_report(self, loss_sum: float, scalars: Scalars) -> None:
        idle = self.trainer.idle.take()
        self.send(self.ledger.report(loss_sum=loss_sum, scalars=scalars, lr=self.trainer.lr.current, idle=idle))

    def flush_after_failure(self) -> None:
        """Report what was trained before the failure, where it can still be read."""
        try:
            self.flush()
        except Exception:  # the failure itself is what counts: a broken device fails here again
            log.warning("rank %d: its last batches could not be reported", self.seat.rank, exc_info=True)

    def record(
        self, *, round_: int, epoch: int, size: int, is_full: bool, busy_ms: float, start_s: float, end_s: float
    ) -> None:
        """Enter a batch that is finished; the arguments are those of ``WorkerLedger.record``."""
        self.trainer.count_loss(size)
        self.ledger.record(
            round_=round_,
            epoch=epoch,
            num_samples=size,
            is_full=is_full,
            busy_ms=busy_ms,
            start_s=start_s,
            end_s=end_s,
        )
        self.trainer.context.local_step = self.ledger.total_batches

    def flush_before(self, *, round_: int, epoch: int, is_urgent: bool) -> None:
        """Report where it is time to, or where the coming batch may not share a report with those before."""
        is_due = is_urgent or time.perf_counter() - self._reported_s >= REPORT_S
        if is_due or self.ledger.must_report_before(round_=round_, epoch=epoch):
            self.flush()

    def hand_in(self) -> None:
        """Give the replica away as it is now, for the last average of a run that was stopped."""
        state = self.trainer.replica.state().clone()
        entry = self.ledger.entry(round_=FINAL_ROUND, is_finite=state.is_finite())
        self.send(Snapshot(entry=entry, payload=state))

    def note_excluded(self, is_excluded: bool) -> bool:
        """Take notice of whether the last average left this rank out; returns it.

        Raises:
            NonFiniteError: It did so once too often.
        """
        if not is_excluded:
            self._num_excluded = 0
            return False
        self._num_excluded += 1
        if self._num_excluded >= MAX_EXCLUDED:
            raise NonFiniteError(f"not finite in {MAX_EXCLUDED} averages in a row: the training has diverged")
        log.warning("rank %d: not finite: left out of the average", self.seat.rank)
        return True

    def check_finite(self, is_finite: bool) -> None:
        """Fail where the run is to stop at the first non-finite number.

        Raises:
            NonFiniteError: The replica is not finite and ``on_nonfinite`` is ``stop``.
        """
        if not is_finite and self.job.on_nonfinite is NonFinitePolicy.STOP:
            raise NonFiniteError("the replica is not finite (NaN or infinity in a loss or gradient)")

    def close(self) -> None:
        """End what belongs to the worker. May be called twice."""
        self.trainer.close()


def run_worker(seat: WorkerSeat, make: Callable[[WorkerSeat], Worker]) -> None:
    """The body of a worker thread."""
    seat.pulse.beat()
    torch.set_num_threads(intra_op_threads(seat.job.devices))
    worker: Worker | None = None
    failure: WorkerFailure | None = None
    try:
        worker = make(seat)
        worker.run()
    except ChannelClosed:
        log.warning("rank %d has come to, but the run went on without it", seat.rank)
    except BaseException as error:  # noqa: BLE001  # a thread's top: whatever it was becomes the worker's last message
        failure = WorkerFailure(rank=seat.rank, error=error, traceback=traceback.format_exc())
        if worker is not None:
            worker.flush_after_failure()
    finally:
        if worker is not None:
            worker.close()
        seat.pulse.rest()
        with contextlib.suppress(ChannelClosed):  # the run has given this worker up already
            seat.outbox.send(WorkerExiting(rank=seat.rank, failure=failure))
        if seat.rendezvous is not None:
            seat.rendezvous.leave(seat.rank)
        seat.inbox.close()
