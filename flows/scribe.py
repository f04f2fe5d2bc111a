"""What the recorder does, without its thread: from the items of a run to committed rows, over failures too."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from flodl_store.database import Database
from flodl_store.errors import DatabaseUnreachableError, RunStateError
from flodl_store.rows import Row
from flodl_store.runs import EndStatus, RunProgress, RunStart, beat, cancel_requested, end_run, get_run, start_run
from flodl_store.writer import RunWriter
from flows.backlog import Backlog, EndedEpoch, Item
from flows.engine_rows import epoch_row, event_row

logger = logging.getLogger(__name__)

BEAT_S = 1.0
"""How often a run says that it lives, where it has nothing else to say."""
BATCH_ROWS = 5_000
"""Rows in one transaction at most: other processes' writes wait for it."""
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 5.0
"""How long to wait after a failure, at first and at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run ended.

    Attributes:
        status: Its end.
        error: Why it failed, in one line.
        progress: How far it came, or None where training never began.
        evaluation: What the evaluation says of the published state.
    """

    status: EndStatus
    error: str | None
    progress: RunProgress | None
    evaluation: Mapping[str, float]


class Scribe:
    """Writes one run. Owner: the recorder's thread; ``now_s`` is that thread's clock and never goes back.

    Where the database does not answer it keeps everything (see ``backlog``) and tries again. Any other error is the end
    of the recording, not of the run.

    Args:
        db: Where to.
        run_id: The whole id of a run that exists and is pending.
        backlog: Where rows wait.
    """

    def __init__(self, db: Database, run_id: str, backlog: Backlog | None = None) -> None:
        self._db = db
        self._run_id = run_id
        self._backlog = Backlog() if backlog is None else backlog
        self._start: RunStart | None = None
        self._started_at: datetime | None = None
        self._start_in_doubt = False
        self._writer: RunWriter | None = None
        self._unwritten: list[Row] = []  # taken from the backlog, and not known to be committed
        self._progress: RunProgress | None = None
        self._beat_s = self._look_s = float("-inf")
        self._retry_s = float("-inf")
        self._wait_s = FIRST_RETRY_S
        self._failing_since_s: float | None = None
        self.cancel_requested = False
        """Whether somebody asked for the run's end."""
        self.failure: str | None = None
        """What the database said last, while it does not answer; or why the recording has ended for good."""
        self.has_given_up = False
        """Whether the recording has ended for good, by an error that no waiting mends."""

    @property
    def num_merged(self) -> int:
        """Rows whose density was given up because the database was away for too long."""
        return self._backlog.num_merged

    @property
    def num_unwritten(self) -> int:
        """Rows that are not in the database."""
        return len(self._backlog) + len(self._unwritten)

    def begin(self, start: RunStart, started_at: datetime) -> None:
        """Training has begun; the engine's clock was at 0 at ``started_at``."""
        self._start, self._started_at = start, started_at

    def add(self, items: Iterable[Item], progress: RunProgress | None) -> None:
        """Take what has happened since, and how far the run is. Only after ``begin``."""
        if not self.has_given_up:
            self._backlog.extend(items)
        self._progress = progress

    def write(self, now_s: float) -> None:
        """Write what there is, or a heartbeat where that is due. Raises nothing."""
        if not self.has_given_up and now_s >= self._retry_s:
            self._attempt(lambda: self._write_all(now_s), now_s)

    def end(self, end: RunEnd, now_s: float) -> bool:
        """Write what is left and how the run ended.

        Returns:
            Whether nothing is left to be tried: all is written, or the recording has given up.
        """
        self.write(now_s)
        if self.has_given_up:
            return True
        if self.failure is not None or self.num_unwritten > 0:
            return False
        return self._attempt(lambda: self._end(end), now_s)

    def _attempt(self, action: Callable[[], None], now_s: float) -> bool:
        """Whether ``action`` is not to be tried again."""
        try:
            action()
        except DatabaseUnreachableError as error:
            self._wait(error, now_s)
            return False
        except Exception as error:  # noqa: BLE001  # whatever it is, training must not end by it
            self._give_up(error)
        else:
            self._recover(now_s)
        return True

    def _end(self, end: RunEnd) -> None:
        end_run(self._db, self._run_id, end.status, end.error, progress=end.progress, evaluation=end.evaluation)

    def _write_all(self, now_s: float) -> None:
        if self._start is None:
            if self.failure is not None or now_s - self._beat_s >= BEAT_S:
                self.cancel_requested = beat(self._db, self._run_id)
                self._beat_s = now_s
            return
        writer = self._writer or self._open_writer(self._start)
        must_beat = self.failure is not None or now_s - self._beat_s >= BEAT_S
        while self._unwritten or len(self._backlog) > 0 or must_beat:
            self._unwritten = self._unwritten or [self._row(item) for item in self._backlog.take(BATCH_ROWS)]
            writer.write(self._unwritten, progress=self._progress)
            self._unwritten, self._beat_s, must_beat = [], now_s, False
        if now_s - self._look_s >= BEAT_S:
            self.cancel_requested, self._look_s = cancel_requested(self._db, self._run_id), now_s

    def _open_writer(self, start: RunStart) -> RunWriter:
        in_doubt, self._start_in_doubt = self._start_in_doubt, True
        try:
            attempt = start_run(self._db, self._run_id, start)
        except RunStateError:
            view = get_run(self._db, self._run_id)
            if not in_doubt or view.status not in ("running", "lost"):
                raise
            attempt = view.attempt  # the attempt before came through, and only its answer did not
        self._writer = RunWriter(self._db, self._run_id, attempt)
        return self._writer

    def _row(self, item: Item) -> Row:
        assert self._started_at is not None, "items come after begin"
        if isinstance(item, EndedEpoch):
            return epoch_row(item.metrics, item.time_s, self._started_at)
        return event_row(item, self._started_at)

    def _wait(self, error: DatabaseUnreachableError, now_s: float) -> None:
        self.failure = str(error)
        if self._failing_since_s is None:
            self._failing_since_s = now_s
            logger.warning("%s; training goes on, and what it does is kept to be written later", error)
        self._retry_s = now_s + self._wait_s
        self._wait_s = min(LAST_RETRY_S, 2 * self._wait_s)

    def _recover(self, now_s: float) -> None:
        if self._failing_since_s is None:
            return
        logger.info(
            "the database answers again after %.1f s; %d rows were merged into their neighbours meanwhile",
            now_s - self._failing_since_s,
            self.num_merged,
        )
        self.failure, self._failing_since_s, self._wait_s = None, None, FIRST_RETRY_S

    def _give_up(self, error: Exception) -> None:
        logger.error("the run is no longer recorded; training goes on", exc_info=error)
        self.failure = f"{type(error).__name__}: {' '.join(str(error).split())}"
        self.has_given_up = True
        self._backlog.take(len(self._backlog))
