"""Rows are written once, in order, whole, whatever they hold and whatever happens at the commit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError

from flodl_store.database import Database
from flodl_store.errors import DatabaseUnreachableError, UnknownRunError, WriterFencedError
from flodl_store.rows import Row
from flodl_store.runs import RunProgress, get_run
from flodl_store.series import changes_after, epochs, events, steps
from flodl_store.writer import RunWriter
from tests.databases import FakeClock
from tests.flodl_store.rows import epoch, running, step
from tests.flodl_store.rows import event as sync

PROGRESS = RunProgress(
    epoch=1,
    avg_loss=0.5,
    num_samples=32,
    num_batches=2,
    num_syncs=1,
    capacity_efficiency=0.9,
    anchor=11,
    global_step=2,
    wall_s=1.0,
)


def all_seqs(db: Database, run_id: str) -> list[int]:
    return sorted(row["seq"] for rows in (steps, epochs, events) for row in rows(db, run_id, limit=10**6))


def test_one_counter_runs_over_all_kinds_of_rows(db: Database) -> None:
    run_id = running(db)
    writer = RunWriter(db, run_id)
    assert writer.write([step(0), sync(1), epoch(0)]) == 3
    assert writer.write([step(2)]) == 4
    assert writer.write([]) == 4
    assert writer.last_seq == 4
    assert [row["seq"] for row in steps(db, run_id)] == [1, 4]
    assert [row["seq"] for row in events(db, run_id)] == [2]
    assert [row["seq"] for row in epochs(db, run_id)] == [3]


def test_rows_come_back_as_they_went(db: Database) -> None:
    run_id = running(db)
    RunWriter(db, run_id, attempt=2).write([step(3), sync(4), epoch(1)])
    (found,) = steps(db, run_id)
    wanted = {name: getattr(step(3), name) for name in type(step()).__slots__}
    assert found == {"seq": 1, "attempt": 2, **wanted}
    (found,) = events(db, run_id)
    assert found == {"seq": 2, "attempt": 2, **{name: getattr(sync(4), name) for name in type(sync()).__slots__}}
    (found,) = epochs(db, run_id)
    assert (found["epoch"], found["eval"], found["scalars"]) == (1, {"accuracy": 0.9, "loss": 0.4}, {"grad": 2.0})
    assert [(rank["rank"], rank["scalars"]) for rank in found["ranks"]] == [(0, {"grad": 1.0}), (1, {"grad": 2.0})]
    assert found["ranks"][0]["batch_share"] == 0.5


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_survive(db: Database, number: float) -> None:
    run_id = running(db)
    ranks = epoch().ranks
    broken = epoch(
        avg_loss=number,
        eval={"loss": number},
        scalars={"grad": number},
        ranks=(ranks[0], type(ranks[1])(rank=1, device="x", loss=number, samples_per_s=1, batch_share=1, busy_ms=1)),
    )
    writer = RunWriter(db, run_id)
    writer.write([step(loss=number, samples_per_s=-number), sync(payload={"by": {0: number}}), broken])
    (found,) = steps(db, run_id)
    assert repr((found["loss"], found["samples_per_s"], found["lr"])) == repr((number, -number, 0.1))
    (found,) = events(db, run_id)
    assert found["payload"] == {"by": {"0": {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(number)]}}
    (found,) = epochs(db, run_id)
    seen = (found["avg_loss"], found["eval"]["loss"], found["scalars"]["grad"], found["ranks"][1]["loss"])
    assert repr(seen) == repr((number,) * 4)
    assert found["ranks"][0]["loss"] == 0.5
    with db.read() as connection:  # what other readers of the database see
        row = connection.exec_driver_sql("SELECT loss FROM step").one()
    assert row.loss is None


def test_a_loss_that_is_not_there_is_none(db: Database) -> None:
    run_id = running(db)
    RunWriter(db, run_id).write([step(loss=None), epoch(avg_loss=None)])
    assert (steps(db, run_id)[0]["loss"], epochs(db, run_id)[0]["avg_loss"]) == (None, None)


def test_a_write_is_a_heartbeat_and_moves_the_runs_figures(db: Database, clock: FakeClock) -> None:
    run_id = running(db)
    writer = RunWriter(db, run_id)
    clock.advance(20)
    writer.write([step()], progress=PROGRESS)
    run = get_run(db, run_id)
    assert (run.heartbeat_at, run.last_seq) == (clock.now, 1)
    assert {name: getattr(run, name) for name in RunProgress.__slots__} == {
        name: getattr(PROGRESS, name) for name in RunProgress.__slots__
    }
    clock.advance(20)
    writer.write([])
    later = get_run(db, run_id)
    assert (later.heartbeat_at, later.num_samples, later.avg_loss) == (clock.now, 32, 0.5)


def test_a_loss_that_became_finite_again_is_shown(db: Database) -> None:
    run_id = running(db)
    writer = RunWriter(db, run_id)
    for loss in (math.nan, 0.25):
        writer.write([], progress=replace(PROGRESS, avg_loss=loss))
        assert repr(get_run(db, run_id).avg_loss) == repr(loss)


def test_the_next_writer_goes_on_where_the_last_one_was(db: Database) -> None:
    run_id = running(db)
    RunWriter(db, run_id).write([step(0), step(1)])
    assert RunWriter(db, run_id, attempt=2).write([step(2)]) == 3
    assert [row["attempt"] for row in steps(db, run_id)] == [1, 1, 2]


def test_of_two_writers_the_older_one_is_told(db: Database) -> None:
    run_id = running(db)
    older, newer = RunWriter(db, run_id), RunWriter(db, run_id)
    newer.write([step(0)])
    with pytest.raises(WriterFencedError, match="has rows up to 1 where this recorder wrote 0"):
        older.write([step(1)])
    newer.write([step(2)])
    assert all_seqs(db, run_id) == [1, 2]


def test_a_run_that_was_deleted_is_named(db: Database) -> None:
    run_id = running(db)
    writer = RunWriter(db, run_id)
    with db.write() as connection:
        connection.exec_driver_sql("DELETE FROM run")
    with pytest.raises(UnknownRunError, match=run_id):
        writer.write([step()])


@pytest.mark.parametrize("rows", [[step(0), step(1)], []], ids=["rows", "a heartbeat"])
@pytest.mark.parametrize("comes_through", [True, False])
def test_rows_whose_commit_was_in_doubt_are_there_once(db: Database, comes_through: bool, rows: list[Row]) -> None:
    run_id = running(db)
    writer = RunWriter(db, run_id)
    writer.write([step(9)])
    with _lost_commit(db, comes_through=comes_through), pytest.raises(DatabaseUnreachableError):
        writer.write(rows)
    assert writer.last_seq == 1
    assert writer.write(rows) == 1 + len(rows)
    assert writer.write([step(2)]) == 2 + len(rows)
    assert all_seqs(db, run_id) == list(range(1, 3 + len(rows)))
    assert [row["global_step"] for row in steps(db, run_id)] == [9, *range(len(rows)), 2]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.lists(st.sampled_from([step(0), sync(0), epoch(0)]), max_size=6), max_size=8), st.integers(1, 7))
def test_whoever_follows_gets_every_row_once(db: Database, batches: list[list[Row]], limit: int) -> None:
    run_id = running(db)
    writer = RunWriter(db, run_id)
    seen, cursor = [], 0
    for batch in [*batches, []]:
        writer.write(batch)
        has_more = bool(batch)
        while has_more:
            changes = changes_after(db, run_id, cursor, limit)
            rows = [row for part in (changes.steps, changes.epochs, changes.events) for row in part]
            assert len(rows) <= limit
            seen += sorted(row["seq"] for row in rows)
            cursor, has_more = changes.last_seq, changes.has_more
    assert seen == list(range(1, 1 + sum(map(len, batches))))
    assert changes_after(db, run_id, cursor).last_seq == cursor == get_run(db, run_id).last_seq


class _lost_commit:  # noqa: N801  # used like a function
    """While it is entered, the answer to a commit does not arrive; the commit itself does, or does not."""

    def __init__(self, db: Database, *, comes_through: bool) -> None:
        self._engine = db.engine
        self._comes_through = comes_through
        self._listener: Callable[[Connection], None] = self._on_commit

    def _on_commit(self, connection: Connection) -> None:
        if self._comes_through:
            raw = connection.connection.dbapi_connection
            assert raw is not None
            raw.cursor().execute("COMMIT")
        raise OperationalError("COMMIT", {}, Exception("the connection was lost"))

    def __enter__(self) -> None:
        event.listen(self._engine, "commit", self._listener)

    def __exit__(self, *_: object) -> None:
        event.remove(self._engine, "commit", self._listener)
