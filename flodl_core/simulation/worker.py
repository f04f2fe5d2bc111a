"""What both kinds of simulated worker share: an inbox, a ledger, and time that batches take."""

import abc
from collections import defaultdict
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from flodl_core.errors import WorkerFailure
from flodl_core.messages import FINAL_ROUND, Entry, Snapshot, ToCoordinator, ToWorker, WorkerExiting
from flodl_core.simulation.machine import Machine
from flodl_core.simulation.rendezvous import Meeting
from flodl_core.simulation.spec import Moment
from flodl_core.worker import REPORT_S
from flodl_core.worker_ledger import WorkerLedger

if TYPE_CHECKING:
    from flodl_core.simulation.simulation import Simulation


class Activity(StrEnum):
    """What a worker's time goes into."""

    TRAIN = "train"
    AVERAGE = "average"
    """An average keeps it from training."""
    WAIT = "wait"
    """It waits for the others with samples at hand: at a meeting, or throttled."""
    NO_DATA = "no data"
    """It has no samples."""
    ENDED = "ended"


class VirtualWorker(abc.ABC):
    """One rank. What it does next is the real worker's logic; only tensors and clock are not.

    Args:
        run: The simulation.
        rank: Its rank.
    """

    def __init__(self, run: "Simulation", rank: int) -> None:
        self.run = run
        self.rank = rank
        self.ledger = WorkerLedger(rank)
        self.inbox: list[ToWorker] = []
        self.activity = Activity.NO_DATA
        self.is_free = True
        """Whether it can do the next thing."""
        self.spent_s: dict[Activity, float] = defaultdict(float)
        """Time by activity, up to the last change."""
        self._since_s = 0.0
        self._reported_s = 0.0
        self._machine = Machine(run.spec, rank)
        self._deaths = {(death.moment, death.at) for death in run.spec.deaths if death.rank == rank}
        self._reached: dict[Moment, int] = defaultdict(int)

    # What it is asked

    @abc.abstractmethod
    def proceed(self) -> None:
        """Do what comes next, until something takes time or has to be waited for."""

    @abc.abstractmethod
    def met(self, meeting: Meeting) -> None:
        """The meeting that it entered has taken place."""

    @abc.abstractmethod
    def meeting_closed(self) -> None:
        """The meeting that it entered will not take place."""

    def arrive(self, message: ToWorker) -> None:
        """Take a message into the inbox."""
        self.inbox.append(message)
        if self.is_free:
            self.proceed()

    # What it does

    def turn_to(self, activity: Activity, *, is_free: bool = False) -> None:
        """Book the time since the last change, and change."""
        now_s = self.run.clock.now_s
        self.spent_s[self.activity] += now_s - self._since_s
        self.activity, self._since_s = activity, now_s
        self.is_free = is_free

    def rest(self, *, has_data: bool) -> None:
        """Wait for a message."""
        self.flush()
        self.turn_to(Activity.WAIT if has_data else Activity.NO_DATA, is_free=True)

    def send(self, message: ToCoordinator) -> None:
        """Tell the coordinator."""
        self.run.post(self.rank, message)

    def flush(self) -> None:
        """Report what has not been reported."""
        if self.ledger.num_unreported:
            self._reported_s = self.run.clock.now_s
            self.report()

    def report(self) -> None:
        """Send what the ledger holds, which is something."""
        self.send(self.ledger.report(loss_sum=0.0, scalars={}, lr=0.1))

    def flush_before(self, *, round_: int, epoch: int, is_urgent: bool) -> None:
        """As the real worker: report where it is time to, or where the coming batch needs a report of its own."""
        is_due = is_urgent or self.run.clock.now_s - self._reported_s >= REPORT_S
        if is_due or self.ledger.must_report_before(round_=round_, epoch=epoch):
            self.flush()

    def begin_epoch(self, epoch: int) -> None:
        """Call ``epoch_fn``."""
        if self.run.observer is not None:
            self.run.observer.on_epoch_begun(rank=self.rank, epoch=epoch)

    def spend(self, ms: float, then: Callable[[], None]) -> None:
        """Take part in an average for ``ms``, then go on."""
        self.turn_to(Activity.AVERAGE)
        self.run.clock.after(ms / 1e3, self._spent, then)

    def _spent(self, then: Callable[[], None]) -> None:
        self.is_free = True
        then()

    def train(self, *, epoch: int, size: int, then: Callable[[float, float], None]) -> None:
        """Compute a batch; ``then`` gets its start and what it took in milliseconds. Or die half-way through."""
        busy_ms = self._machine.next_batch_ms(epoch=epoch, size=size)
        now_s = self.run.clock.now_s
        self.turn_to(Activity.TRAIN)
        if self.is_end(Moment.BATCH) or (Moment.EPOCH, epoch) in self._deaths:
            self.run.clock.after(busy_ms / 2e3, self.die)
        else:
            self.run.clock.after(busy_ms / 1e3, then, now_s, busy_ms)

    def record(self, *, round_: int, epoch: int, offset: int, size: int, start_s: float, busy_ms: float) -> None:
        """Enter a batch that is done into the ledger."""
        now_s = self.run.clock.now_s
        if self.run.observer is not None:
            self.run.observer.on_batch(
                rank=self.rank, epoch=epoch, offset=offset, size=size, busy_ms=busy_ms, end_s=now_s
            )
        self.ledger.record(
            round_=round_,
            epoch=epoch,
            num_samples=size,
            is_full=size == self.run.spec.batch_size,
            busy_ms=busy_ms,
            start_s=start_s,
            end_s=now_s,
        )

    def enter(self, entry: Entry) -> None:
        """Go to the meeting, and perhaps die there."""
        self.turn_to(Activity.WAIT if entry.num_samples > 0 else Activity.NO_DATA)
        if not self.is_end(Moment.MEETING):
            self.run.rendezvous.enter(self, entry)
        elif self.run.rendezvous.would_release(self.rank):
            self.die()
        else:
            self.run.rendezvous.enter(self, entry)
            self.die()

    def leave_meeting(self, cost_ms: float) -> None:
        """It has taken place: of the time in it, ``cost_ms`` went into the average."""
        waited_in = self.activity
        average_s = min(cost_ms / 1e3, self.run.clock.now_s - self._since_s)  # rounded, the last one's stay is shorter
        self.turn_to(Activity.AVERAGE, is_free=True)
        self.spent_s[waited_in] -= average_s
        self.spent_s[Activity.AVERAGE] += average_s

    # Its end

    def is_end(self, moment: Moment) -> bool:
        """Whether the worker dies at this moment; to be asked once for each."""
        at = self._reached[moment]
        self._reached[moment] += 1
        return (moment, at) in self._deaths

    def die(self) -> None:
        """Raise: the last message says so."""
        self.flush()
        error = RuntimeError("died as the simulation was told")
        self._end(WorkerExiting(rank=self.rank, failure=WorkerFailure(rank=self.rank, error=error, traceback="")))

    def exit(self, *, hand_in: bool) -> None:
        """End as told, or die at it."""
        if self.is_end(Moment.EXIT):
            self.die()
            return
        self.flush()
        if hand_in:
            self.send(Snapshot(entry=self.ledger.entry(round_=FINAL_ROUND), payload=None))
        self._end(WorkerExiting(rank=self.rank))

    def _end(self, message: WorkerExiting) -> None:
        self.turn_to(Activity.ENDED)
        self.send(message)
        self.run.rendezvous.leave(self.rank)
