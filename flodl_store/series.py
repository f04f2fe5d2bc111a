"""Reading what a run did: rows as plain dicts, in the order of ``seq``.

Floats are numbers again, NaN and infinities among them; ``wall_time`` is an aware ``datetime`` in UTC.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from flodl_store.database import Database
from flodl_store.errors import UnknownRunError
from flodl_store.nonfinite import as_numbers, put_back
from flodl_store.tables import ALL_RANKS, Table

RowDict = dict[str, Any]
_TABLES = Table.metadata.tables
_RUN = _TABLES["run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a run recorded after some ``seq``.

    Attributes:
        steps: As ``steps`` gives them.
        epochs: As ``epochs`` gives them.
        events: As ``events`` gives them.
        last_seq: Where to go on: everything up to it is in here or came before.
        has_more: Whether there is more already.
    """

    steps: tuple[RowDict, ...]
    epochs: tuple[RowDict, ...]
    events: tuple[RowDict, ...]
    last_seq: int
    has_more: bool


def steps(db: Database, run_id: str, *, after: int = 0, limit: int = 5000) -> list[RowDict]:
    """At most ``limit`` step rows with a ``seq`` above ``after``.

    Keys: ``seq, attempt, rank, epoch, global_step, time_s, wall_time, loss, lr, samples_per_s, num_batches,
    num_samples, busy_ms``.

    Raises:
        DatabaseUnreachableError: The database does not answer.
    """
    with db.read() as connection:
        return _steps(connection, run_id, after=after, limit=limit)


def epochs(db: Database, run_id: str, *, after: int = 0, limit: int = 5000) -> list[RowDict]:
    """At most ``limit`` epochs with a ``seq`` above ``after``.

    Keys: ``seq, attempt, epoch, time_s, wall_time, avg_loss, epoch_ms, lr, num_batches, num_samples,
    capacity_efficiency, eval`` (dict), ``scalars`` (dict), ``ranks`` (list of ``rank, device, loss, samples_per_s,
    batch_share, busy_ms, scalars``, in the order of ranks).

    Raises:
        DatabaseUnreachableError: The database does not answer.
    """
    with db.read() as connection:
        return _epochs(connection, run_id, after=after, limit=limit)


def events(db: Database, run_id: str, *, after: int = 0, limit: int = 5000) -> list[RowDict]:
    """At most ``limit`` events with a ``seq`` above ``after``.

    Keys: ``seq, attempt, kind, rank, time_s, wall_time, payload``; kinds: see ``rows.NewEvent``. In a payload numbers
    that are not finite stay ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``.

    Raises:
        DatabaseUnreachableError: The database does not answer.
    """
    with db.read() as connection:
        return _events(connection, run_id, after=after, limit=limit)


def changes_after(db: Database, run_id: str, seq: int, limit: int = 5000) -> Changes:
    """What the run recorded after ``seq``, of all kinds, at most ``limit`` rows; one moment of the database.

    Raises:
        UnknownRunError: There is no such run.
        DatabaseUnreachableError: The database does not answer.
    """
    with db.read() as connection:
        newest = connection.execute(select(_RUN.c.last_seq).where(_RUN.c.id == run_id)).scalar()
        if newest is None:
            raise UnknownRunError(f"there is no run {run_id}")
        upto = min(seq + limit, newest)  # ``seq`` has no gaps: a stretch of it is a number of rows
        return Changes(
            steps=tuple(_steps(connection, run_id, after=seq, upto=upto)),
            epochs=tuple(_epochs(connection, run_id, after=seq, upto=upto)),
            events=tuple(_events(connection, run_id, after=seq, upto=upto)),
            last_seq=max(seq, upto),
            has_more=upto < newest,
        )


def _steps(connection: Connection, run_id: str, **stretch: int) -> list[RowDict]:
    return [put_back(row) for row in _rows(connection, "step", run_id, **stretch)]


def _events(connection: Connection, run_id: str, **stretch: int) -> list[RowDict]:
    return _rows(connection, "event", run_id, **stretch)


def _epochs(connection: Connection, run_id: str, **stretch: int) -> list[RowDict]:
    found = _rows(connection, "epoch", run_id, **stretch)
    if not found:
        return []
    span = {"after": found[0]["seq"] - 1, "upto": found[-1]["seq"]}
    ranks = _by_seq(_rows(connection, "epoch_rank", run_id, **span))
    scalars = _by_seq(_rows(connection, "epoch_scalar", run_id, **span))
    return [_epoch(row, ranks.get(row["seq"], ()), scalars.get(row["seq"], ())) for row in found]


def _epoch(row: RowDict, ranks: Sequence[RowDict], scalars: Sequence[RowDict]) -> RowDict:
    by_rank: dict[int, dict[str, float]] = {}
    for scalar in map(put_back, scalars):
        by_rank.setdefault(scalar["rank"], {})[scalar["name"]] = scalar["value"]
    return {
        **put_back(row),
        "eval": as_numbers(row["eval"]),
        "scalars": by_rank.get(ALL_RANKS, {}),
        "ranks": [_epoch_rank(rank, by_rank) for rank in sorted(ranks, key=lambda rank: rank["rank"])],
    }


def _epoch_rank(row: RowDict, scalars: Mapping[int, dict[str, float]]) -> RowDict:
    del row["seq"]
    return {**put_back(row), "scalars": scalars.get(row["rank"], {})}


def _by_seq(rows: Sequence[RowDict]) -> dict[int, list[RowDict]]:
    found: dict[int, list[RowDict]] = {}
    for row in rows:
        found.setdefault(row["seq"], []).append(row)
    return found


def _rows(
    connection: Connection, name: str, run_id: str, *, after: int, upto: int | None = None, limit: int | None = None
) -> list[RowDict]:
    table = _TABLES[name]
    columns = [column for column in table.columns if column.name != "run_id"]
    query = select(*columns).where(table.c.run_id == run_id, table.c.seq > after).order_by(table.c.seq)
    if upto is not None:
        query = query.where(table.c.seq <= upto)
    return [dict(row) for row in connection.execute(query.limit(limit)).mappings()]
