"""What a Local SGD worker does next: the worker's half of the protocol, without tensors, threads or clocks.

The torch worker and the simulator drive the same object. Messages of the coordinator go in through ``handle``; the
driver asks ``next_action``, does it, and tells what came of it.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from flodl_core.messages import (
    EpochPlan,
    OpenRound,
    RequestParams,
    Shutdown,
    StartEpoch,
    SyncNow,
    Throttle,
    ToWorker,
    Update,
)
from flodl_core.rounds import Window

BATCH_MS_WEIGHT = 0.3
"""Weight of the newest batch in the smoothed batch time; the deadline rule needs no more than a rough one."""


class TrainBatch(NamedTuple):
    """Train these samples of the epoch's permutation; then call ``batch_done``.

    A tuple, since one is made for every batch: it costs half of what a frozen dataclass does.
    """

    epoch: int
    offset: int
    size: int
    is_last_of_queue: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginEpoch:
    """Call ``epoch_fn`` for this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWindow:
    """Flush the report, then send ``WindowDone``."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Meet:
    """Enter the rendezvous; then call ``met``, or ``meeting_closed`` when it gave no result."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSnapshot:
    """Flush the report, then hand in a snapshot."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeUpdate:
    """Merge the average and send ``SyncDone``."""

    update: Update


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do before the next message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """End; hand in a last snapshot first if asked to."""

    hand_in: bool


Action = TrainBatch | BeginEpoch | EndWindow | Meet | TakeSnapshot | TakeUpdate | Wait | Exit


class WorkerLogic:
    """Owned by one worker.

    Args:
        batch_size: Samples in a full batch.
        meets: Whether the worker meets the others at the end of a window (all-reduce), or trains on (CPU backend).
    """

    def __init__(self, *, batch_size: int, meets: bool) -> None:
        self._batch_size = batch_size
        self._meets = meets
        self._queue: deque[EpochPlan] = deque()
        self._done = 0  # samples of the first in the queue that have been trained
        self._exchanges: deque[TakeSnapshot | TakeUpdate] = deque()
        self._rounds: deque[OpenRound] = deque()
        self._window: Window | None = None
        self._opened: OpenRound | None = None
        self._window_ended = False
        self._sync_now = -1
        self._throttled = -1
        self._batch_ms = 0.0
        self._begun_epoch = -1
        self._shutdown: Shutdown | None = None
        self._meeting_closed = False

    @property
    def round(self) -> int:
        """The round that batches belong to now; 0 before the first has opened."""
        return self._window.round if self._window is not None else 0

    @property
    def has_data(self) -> bool:
        """Whether the worker has been dealt something that it has not trained yet."""
        return bool(self._queue)

    @property
    def opened(self) -> OpenRound | None:
        """The message that opened the current window."""
        return self._opened

    @property
    def slice_left(self) -> int:
        """Samples of the slice under way that have not been trained yet."""
        return self._queue[0].size - self._done

    def plan_after(self, batch: TrainBatch) -> EpochPlan | None:
        """The batch that will probably follow ``batch``, for reading ahead; None where none is queued."""
        left = self.slice_left - batch.size
        if left > 0:
            return EpochPlan(epoch=batch.epoch, offset=batch.offset + batch.size, size=min(self._batch_size, left))
        if len(self._queue) == 1 or self._queue[1].size == 0:
            return None
        after = self._queue[1]
        return EpochPlan(epoch=after.epoch, offset=after.offset, size=min(self._batch_size, after.size))

    def handle(self, message: ToWorker) -> None:
        """Take a message of the coordinator. Messages must come in the order in which they were sent."""
        match message:
            case StartEpoch():
                self._queue.append(message.plan)
            case OpenRound():
                self._on_open_round(message)
            case SyncNow():
                self._sync_now = max(self._sync_now, message.round)
            case Throttle():
                self._throttled = max(self._throttled, message.round)
            case RequestParams():
                self._exchanges.append(TakeSnapshot(round=message.round))
            case Update():
                self._exchanges.append(TakeUpdate(update=message))
            case Shutdown():
                self._shutdown = message

    def _on_open_round(self, message: OpenRound) -> None:
        if self._opened is not None and message.round <= self._opened.round:
            # speeds became known within the first round: it goes on with better limits, if it still does
            if self._window is not None and message.round == self._window.round:
                self._opened = message
                self._window.deadline_ms, self._window.count = message.deadline_ms, message.count
            return
        self._rounds.append(message)
        if self._window is None or not self._meets:
            self._open_next()

    def _open_next(self) -> None:
        self._opened = self._rounds.popleft()
        self._window = Window(self._opened.round, self._opened.deadline_ms, self._opened.count)
        self._window_ended = False

    def next_action(self) -> Action:
        """What to do now. Asking twice without an answer in between gives the same kind of action."""
        if self._exchanges:
            return self._exchanges.popleft()
        if self._shutdown is not None and (self._shutdown.hand_in or not self._queue):
            return Exit(hand_in=self._shutdown.hand_in)  # a completed run first begins the epochs without work here
        if self._queue:
            head = self._queue[0]
            if head.epoch > self._begun_epoch:
                self._begun_epoch += 1
                return BeginEpoch(epoch=self._begun_epoch)
            if head.size == 0:
                self._queue.popleft()
                return self.next_action()
        return self._next_in_window()

    def _next_in_window(self) -> Action:
        window = self._window
        if window is None or self._meeting_closed:
            return Wait()
        if not self._window_ended and self._must_end(window):
            self._window_ended = True
            return EndWindow(round=window.round)
        if self._window_ended and self._meets:
            return Meet(round=window.round)
        if not self._queue or self._throttled >= window.round:
            return Wait()
        plan = self._queue[0]
        left = plan.size - self._done
        size = min(self._batch_size, left)
        is_last = size == left and len(self._queue) == 1
        return TrainBatch(plan.epoch, plan.offset + self._done, size, is_last)

    def _must_end(self, window: Window) -> bool:
        if self._sync_now >= window.round or self._throttled >= window.round:
            return True
        return bool(self._queue) and not window.fits(self._batch_ms)

    def batch_done(self, *, busy_ms: float, size: int) -> None:
        """The batch of the last ``TrainBatch`` has been trained.

        Args:
            busy_ms: What it took.
            size: Its samples.
        """
        assert self._window is not None, "a batch needs an open window"
        self._done += size
        if self._done >= self._queue[0].size:
            self._queue.popleft()
            self._done = 0
        self._window.record(busy_ms)
        if size == self._batch_size:
            weight = BATCH_MS_WEIGHT if self._batch_ms > 0 else 1.0
            self._batch_ms += weight * (busy_ms - self._batch_ms)

    def met(self) -> None:
        """The meeting of the current round has taken place."""
        self._window = None
        if self._rounds:
            self._open_next()

    def meeting_closed(self) -> None:
        """The meeting will not take place: the run is ending, and ``Shutdown`` is on its way."""
        self._meeting_closed = True
