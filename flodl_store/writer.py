"""Writing what a run does: batches of rows, each in one transaction, with one gapless ``seq`` for all of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from flodl_store.database import Database
from flodl_store.errors import UnknownRunError, WriterFencedError
from flodl_store.nonfinite import set_aside
from flodl_store.rows import NewEpoch, NewEpochRank, NewEvent, NewStep, Row
from flodl_store.run_progress import RunProgress, progress_columns
from flodl_store.tables import ALL_RANKS, Table

_TABLES = Table.metadata.tables
_RUN = _TABLES["run"]

# Built once: to build a statement takes longer than to execute it.
_INSERTS = {name: _TABLES[name].insert() for name in ("step", "epoch", "epoch_rank", "epoch_scalar", "event")}
_LOOK = select(_RUN.c.last_seq).where(_RUN.c.id == bindparam("of_run"))
_ADVANCE = update(_RUN).where(_RUN.c.id == bindparam("of_run"), _RUN.c.last_seq == bindparam("expected"))

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
        with db.read() as connection:
            self._last_seq = self._stored_seq(connection)

    @property
    def last_seq(self) -> int:
        """The highest ``seq`` that is known to be committed."""
        return self._last_seq

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
        values = {
            "last_seq": self._last_seq + len(rows),
            "heartbeat_at": self._db.clock(),
            **progress_columns(progress),
        }
        with self._db.write() as connection:
            if self._advance(connection, self._last_seq, values):
                self._insert(connection, rows)
            else:
                self._settle(connection, doubt if doubt == len(rows) else 0, values)
        self._last_seq += len(rows)
        self._in_doubt = 0
        return self._last_seq

    def _advance(self, connection: Connection, expected: int, values: Mapping[str, Any]) -> bool:
        """Move the run on, if ``expected`` is its newest ``seq``; nobody else gets at it before the commit."""
        changed = connection.execute(_ADVANCE, {"of_run": self._run_id, "expected": expected, **values})
        return changed.rowcount == 1

    def _settle(self, connection: Connection, doubt: int, values: Mapping[str, Any]) -> None:
        """The run is not where it was left: by our own commit, whose answer did not arrive, or by somebody else."""
        if doubt > 0 and self._advance(connection, self._last_seq + doubt, values):
            return
        raise WriterFencedError(
            f"run {self._run_id} has rows up to {self._stored_seq(connection)} where this recorder wrote "
            f"{self._last_seq}: another recorder feeds it"
        )

    def _stored_seq(self, connection: Connection) -> int:
        stored = connection.execute(_LOOK, {"of_run": self._run_id}).scalar()
        if stored is None:
            raise UnknownRunError(f"there is no run {self._run_id}")
        return int(stored)

    def _insert(self, connection: Connection, rows: Sequence[Row]) -> None:
        batch: _Batch = {name: [] for name in _INSERTS}
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
                connection.execute(_INSERTS[name], values)

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
