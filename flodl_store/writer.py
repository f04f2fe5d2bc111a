"""Writing what a run does: batches of rows, each in one transaction, with one gapless ``seq`` for all of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, Table, select, update

from flodl_store.database import Database
from flodl_store.errors import UnknownRunError, WriterFencedError
from flodl_store.nonfinite import set_aside
from flodl_store.rows import NewEpoch, NewEpochRank, NewEvent, NewStep, Row
from flodl_store.run_progress import RunProgress, progress_columns
from flodl_store.tables import ALL_RANKS
from flodl_store.tables import Table as AnyTable

_TABLES = AnyTable.metadata.tables
_RUN = _TABLES["run"]

_STEP_FIELDS = tuple(field.name for field in fields(NewStep))
_STEP_FLOATS = ("loss", "lr", "samples_per_s", "busy_ms")
_EPOCH_FIELDS = tuple(field.name for field in fields(NewEpoch) if field.name not in ("scalars", "ranks"))
_EPOCH_FLOATS = ("avg_loss", "epoch_ms", "lr", "capacity_efficiency")
_RANK_FIELDS = tuple(field.name for field in fields(NewEpochRank) if field.name != "scalars")
_RANK_FLOATS = ("loss", "samples_per_s", "batch_share", "busy_ms")
_EVENT_FIELDS = tuple(field.name for field in fields(NewEvent))

_Batch = dict[str, list[dict[str, Any]]]


class RunWriter:
    """The one writer of a run's steps, epochs and events. Owned by one thread.

    It goes on from the highest ``seq`` that the run has, and notices when anybody else has written since.

    Args:
        db: Where to.
        run_id: The whole id of a run that exists.
        attempt: Which try of the run the rows belong to, from 1.

    Raises:
        UnknownRunError: There is no such run.
        DatabaseUnreachableError: The database does not answer.
    """

    def __init__(self, db: Database, run_id: str, attempt: int = 1) -> None:
        self._db = db
        self._run_id = run_id
        self._attempt = attempt
        self._in_doubt = 0
        self._cancel_requested = False
        with db.read() as connection:
            self._last_seq = self._look(connection, lock=False)

    @property
    def last_seq(self) -> int:
        """The highest ``seq`` that is known to be committed."""
        return self._last_seq

    @property
    def cancel_requested(self) -> bool:
        """Whether, at the last ``write``, somebody had asked for the run's end."""
        return self._cancel_requested

    def write(self, rows: Sequence[Row], *, progress: RunProgress | None = None) -> int:
        """Commit ``rows``, in this order, together with the run's heartbeat and how far it is.

        After an error, call again with the same rows first: where the commit had come through although its answer did
        not, they are not written twice.

        Args:
            rows: What happened since the last call; may be empty.
            progress: How far the run is now; None leaves the figures as they are.

        Returns:
            The ``seq`` of the last row.

        Raises:
            WriterFencedError: Somebody else has written to the run.
            UnknownRunError: The run was deleted.
            DatabaseUnreachableError: The database does not answer; nothing or everything was committed.
        """
        doubt, self._in_doubt = self._in_doubt, len(rows)
        with self._db.write() as connection:
            stored = self._look(connection, lock=True)
            is_there = doubt > 0 and doubt == len(rows) and stored == self._last_seq + doubt
            if not is_there:
                if stored != self._last_seq:
                    raise WriterFencedError(
                        f"run {self._run_id} has rows up to {stored} where this recorder wrote {self._last_seq}: "
                        "another recorder feeds it"
                    )
                self._insert(connection, rows)
            self._touch_run(connection, len(rows), progress)
        self._last_seq += len(rows)
        self._in_doubt = 0
        return self._last_seq

    def _look(self, connection: Connection, *, lock: bool) -> int:
        """The run's newest ``seq``; with ``lock`` nobody else gets at it before the commit."""
        query = select(_RUN.c.last_seq, _RUN.c.cancel_requested_at).where(_RUN.c.id == self._run_id)
        row = connection.execute(query.with_for_update() if lock else query).one_or_none()
        if row is None:
            raise UnknownRunError(f"there is no run {self._run_id}")
        self._cancel_requested = row.cancel_requested_at is not None
        return int(row.last_seq)

    def _touch_run(self, connection: Connection, num_rows: int, progress: RunProgress | None) -> None:
        values = {
            "last_seq": self._last_seq + num_rows,
            "heartbeat_at": self._db.clock(),
            **progress_columns(progress),
        }
        connection.execute(update(_RUN).where(_RUN.c.id == self._run_id).values(values))

    def _insert(self, connection: Connection, rows: Sequence[Row]) -> None:
        batch: _Batch = {"step": [], "epoch": [], "epoch_rank": [], "epoch_scalar": [], "event": []}
        for seq, row in enumerate(rows, self._last_seq + 1):
            key = {"run_id": self._run_id, "seq": seq}
            match row:
                case NewStep():
                    batch["step"].append(self._columns(row, _STEP_FIELDS, _STEP_FLOATS, key))
                case NewEpoch():
                    self._add_epoch(batch, row, key)
                case NewEvent():
                    batch["event"].append({**key, "attempt": self._attempt, **_values(row, _EVENT_FIELDS)})
        for name, values in batch.items():  # an epoch before its ranks, which refer to it
            if values:
                connection.execute(_table(name).insert(), values)

    def _columns(
        self, row: object, names: Iterable[str], floats: Iterable[str], key: Mapping[str, Any]
    ) -> dict[str, Any]:
        values = {**key, "attempt": self._attempt, **_values(row, names)}
        set_aside(values, floats)
        return values

    def _add_epoch(self, batch: _Batch, row: NewEpoch, key: Mapping[str, Any]) -> None:
        batch["epoch"].append(self._columns(row, _EPOCH_FIELDS, _EPOCH_FLOATS, key))
        batch["epoch_scalar"] += _scalars(row.scalars, {**key, "rank": ALL_RANKS})
        for rank in row.ranks:
            values = {**key, **_values(rank, _RANK_FIELDS)}
            set_aside(values, _RANK_FLOATS)
            batch["epoch_rank"].append(values)
            batch["epoch_scalar"] += _scalars(rank.scalars, {**key, "rank": rank.rank})


def _scalars(scalars: Mapping[str, float], key: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = [{**key, "name": name, "value": value} for name, value in scalars.items()]
    for row in rows:
        set_aside(row, ("value",))
    return rows


def _values(row: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _table(name: str) -> Table:
    return _TABLES[name]
