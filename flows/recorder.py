"""Writes a run into the database while it goes on, beside training and never in its way.

The thread ``flodl-recorder`` collects what the engine has to tell every quarter of a second and commits it in one
transaction. Nobody else waits for the database: callers leave messages, and what the engine tells waits in its own feed
and then in the backlog. Order of the end: the caller leaves it; the thread collects what is left, writes it, then the
end, and ends; the caller joins it.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from flodl_core import DdpHandle, EpochEnded, EpochMetrics, Progress
from flodl_store.database import Database
from flodl_store.runs import RunProgress, RunStart
from flows.backlog import EndedEpoch, Item
from flows.scribe import RunEnd, Scribe

logger = logging.getLogger(__name__)

WRITE_EVERY_S = 0.25
"""How often rows are written."""
DRAIN_S = 30.0
"""How long the end of a run waits for a database that does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Follow:
    handle: DdpHandle
    start: RunStart


@dataclass(frozen=True, slots=True, kw_only=True)
class _Close:
    end: RunEnd | None


class Recorder:
    """Records one run. All methods may be called from any thread; none waits for the database but ``close``.

    Args:
        db: Where to; open until the recorder is closed.
        run_id: The whole id of a run that exists and is pending.
        clock: Seconds, for when to write; the thread's own.
    """

    def __init__(self, db: Database, run_id: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._clock = clock
        self._scribe = Scribe(db, run_id)
        self._inbox: queue.SimpleQueue[_Follow | EpochMetrics | _Close] = queue.SimpleQueue()
        self._handle: DdpHandle | None = None
        self._epochs: list[EpochMetrics] = []
        self._ended_s: dict[int, float] = {}
        self._num_epochs = 0
        self._avg_loss: float | None = None
        self._closing: _Close | None = None
        self._drain_s = DRAIN_S
        self._thread = threading.Thread(target=self._work, name="flodl-recorder")
        self._thread.start()

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked, in the database, for the run's end; at most about a second old."""
        return self._scribe.cancel_requested

    @property
    def failure(self) -> str | None:
        """What the database said last, while it does not answer, or why nothing is recorded any more; else None."""
        return self._scribe.failure

    def follow(self, handle: DdpHandle, start: RunStart) -> None:
        """Training has begun: record what ``handle`` tells. Nobody else may read its events."""
        self._inbox.put(_Follow(handle=handle, start=start))

    def epoch_ended(self, metrics: EpochMetrics) -> None:
        """Record an epoch."""
        self._inbox.put(metrics)

    def close(self, end: RunEnd | None, *, limit_s: float = DRAIN_S) -> str | None:
        """Write what is left, and the end where it is known, and stop. May be called twice.

        Args:
            end: How the run ended; None where nobody can tell, so that its row stays as it is.
            limit_s: How long to try where the database does not answer.

        Returns:
            What is missing in the database and why, in one line, or None.
        """
        if self._thread.is_alive():
            self._drain_s = limit_s
            self._inbox.put(_Close(end=end))
            self._thread.join()
        return self._shortfall()

    def _shortfall(self) -> str | None:
        scribe = self._scribe
        if scribe.failure is not None:
            return f"the run is not recorded to its end ({scribe.num_unwritten} rows are missing): {scribe.failure}"
        if scribe.num_merged > 0:
            return f"the database was away for long: {scribe.num_merged} rows were merged into their neighbours"
        return None

    # In the recorder's thread

    def _work(self) -> None:
        try:
            while self._closing is None and threading.main_thread().is_alive():
                self._take_messages()
                self._collect()
                self._scribe.write(self._clock())
            self._drain()
        except BaseException:
            logger.exception("the recorder failed")
            self._scribe.failure = "the recorder failed; the log says where"

    def _take_messages(self) -> None:
        try:
            self._take(self._inbox.get(timeout=WRITE_EVERY_S))
            while True:
                self._take(self._inbox.get_nowait())
        except queue.Empty:
            return

    def _take(self, message: _Follow | EpochMetrics | _Close) -> None:
        match message:
            case _Follow():
                self._handle = message.handle
                self._scribe.begin(message.start, self._db.clock())
            case EpochMetrics():
                self._epochs.append(message)
            case _Close():
                self._closing = message

    def _collect(self) -> None:
        """What the engine has told: first its events, then the epochs, which their events precede."""
        if self._handle is None:
            return
        items: list[Item] = [*self._handle.poll_events()]
        self._ended_s |= {event.epoch: event.time_s for event in items if isinstance(event, EpochEnded)}
        for metrics in self._epochs:
            items.append(EndedEpoch(metrics=metrics, time_s=self._ended_s.pop(metrics.epoch)))
            self._num_epochs, self._avg_loss = self._num_epochs + 1, metrics.avg_loss
        self._epochs = []
        progress = self._handle.progress()
        self._scribe.add(items, run_progress(progress, num_epochs=self._num_epochs, avg_loss=self._avg_loss))

    def _drain(self) -> None:
        self._collect()
        limit_s = self._clock() + self._drain_s
        while not self._is_drained() and self._clock() < limit_s:
            self._take_messages()  # a pause: nobody leaves any more

    def _is_drained(self) -> bool:
        scribe, now_s = self._scribe, self._clock()
        if self._closing is not None and self._closing.end is not None:
            return scribe.end(self._closing.end, now_s)
        scribe.write(now_s)
        return scribe.has_given_up or (scribe.failure is None and scribe.num_unwritten == 0)


def run_progress(progress: Progress, *, num_epochs: int, avg_loss: float | None) -> RunProgress:
    """How far a run is, in the store's terms.

    Args:
        progress: The engine's.
        num_epochs: Epochs that have ended.
        avg_loss: Mean training loss of the last of them, or None.
    """
    totals = progress.totals
    return RunProgress(
        epoch=num_epochs,
        avg_loss=avg_loss,
        num_samples=totals.num_samples,
        num_batches=totals.num_batches,
        num_syncs=progress.num_syncs,
        capacity_efficiency=totals.capacity_efficiency,
        anchor=progress.anchor,
        global_step=totals.num_batches,
        wall_s=totals.wall_s,
    )
