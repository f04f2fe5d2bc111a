"""What the recorder does when all is well, when the database is away, and when there is no hope; its time is given."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from flodl_core import EpochEnded
from flodl_store.database import Database
from flodl_store.errors import DatabaseUnreachableError
from flodl_store.runs import RunProgress, get_run, request_cancel, start_run
from flodl_store.series import changes_after, steps
from flodl_store.writer import RunWriter
from flows.backlog import Backlog, EndedEpoch, Item
from flows.scribe import BEAT_S, RunEnd, Scribe
from tests.databases import Away, FakeClock
from tests.flodl_store.rows import START, new_run
from tests.flodl_store.rows import step as step_row
from tests.flows.engine_events import EPOCH, STEP, SYNC

STARTED_AT = datetime(2026, 1, 2, tzinfo=UTC)
PROGRESS = RunProgress(
    epoch=1,
    avg_loss=0.5,
    num_samples=48,
    num_batches=3,
    num_syncs=1,
    capacity_efficiency=0.97,
    anchor=10,
    global_step=3,
    wall_s=1.5,
)
END = RunEnd(status="completed", error=None, progress=PROGRESS, evaluation={"accuracy": 0.9})
LONG_S = 1000.0
ITEMS: list[Item] = [
    STEP,
    SYNC,
    EpochEnded(time_s=1.6, epoch=0, num_samples=48, global_step=3),
    EndedEpoch(metrics=EPOCH, time_s=1.6),
]


def begun(db: Database, backlog: Backlog | None = None) -> tuple[str, Scribe]:
    run_id = new_run(db).id
    scribe = Scribe(db, run_id, backlog)
    scribe.begin(START, STARTED_AT)
    return run_id, scribe


def test_before_training_a_run_beats(db: Database, clock: FakeClock) -> None:
    run_id = new_run(db).id
    scribe = Scribe(db, run_id)
    scribe.write(0.0)
    assert get_run(db, run_id).heartbeat_at == clock.now
    clock.advance(1)
    scribe.write(BEAT_S / 2)
    assert get_run(db, run_id).heartbeat_at != clock.now
    scribe.write(BEAT_S)
    assert get_run(db, run_id).heartbeat_at == clock.now
    assert get_run(db, run_id).status == "pending"


def test_a_run_is_written_from_start_to_end(db: Database) -> None:
    run_id, scribe = begun(db)
    scribe.write(0.0)
    assert get_run(db, run_id).status == "running"
    scribe.add(ITEMS, PROGRESS)
    scribe.write(0.1)
    changes = changes_after(db, run_id, 0)
    assert [step["seq"] for step in changes.steps] == [1]
    assert [event["kind"] for event in changes.events] == ["sync", "epoch_ended"]
    assert [(epoch["seq"], epoch["time_s"]) for epoch in changes.epochs] == [(4, 1.6)]
    assert get_run(db, run_id).num_samples == 48
    scribe.add([replace(STEP, rank=1)], PROGRESS)
    assert scribe.end(END, 0.2)
    run = get_run(db, run_id)
    assert (run.status, run.eval, run.last_seq) == ("completed", {"accuracy": 0.9}, 5)
    assert (scribe.failure, scribe.num_unwritten, scribe.num_merged) == (None, 0, 0)


def test_a_run_that_never_trained_has_an_end_too(db: Database) -> None:
    run_id = new_run(db).id
    assert Scribe(db, run_id).end(RunEnd(status="failed", error="boom", progress=None, evaluation={}), 0.0)
    assert (get_run(db, run_id).status, get_run(db, run_id).error) == ("failed", "boom")


@pytest.mark.parametrize("is_training", [False, True])
def test_a_wish_to_cancel_is_heard(db: Database, is_training: bool) -> None:
    run_id = new_run(db).id
    scribe = Scribe(db, run_id)
    if is_training:
        scribe.begin(START, STARTED_AT)
    scribe.write(0.0)
    assert not scribe.cancel_requested
    request_cancel(db, run_id)
    scribe.write(BEAT_S)
    assert scribe.cancel_requested


def test_what_happens_while_the_database_is_away_is_written_later(
    db: Database, away: Away, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="flows.scribe")
    run_id, scribe = begun(db)
    scribe.add([STEP], PROGRESS)
    scribe.write(0.0)
    with away():
        for number in range(1, 5):
            scribe.add([replace(STEP, global_step=number)], PROGRESS)
            scribe.write(100.0 * number)
            assert scribe.failure is not None
            assert scribe.num_unwritten == number
    scribe.write(500.0)
    assert (scribe.failure, scribe.num_unwritten) == (None, 0)
    rows = steps(db, run_id)
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["global_step"] for row in rows] == [4, 1, 2, 3, 4]
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "training goes on" in warned[0]
    assert "the database answers again after 400.0 s; 0 rows were merged" in caplog.text


def test_a_run_may_start_while_the_database_is_away(db: Database, away: Away) -> None:
    run_id, scribe = begun(db)
    scribe.add([STEP], PROGRESS)
    with away():
        scribe.write(0.0)
        assert scribe.failure is not None
    scribe.write(LONG_S)
    assert (get_run(db, run_id).status, len(steps(db, run_id))) == ("running", 1)


def test_a_start_that_came_through_unheard_is_no_failure(db: Database, away: Away) -> None:
    run_id, scribe = begun(db)
    scribe.add([STEP], PROGRESS)
    with away():
        scribe.write(0.0)
    start_run(db, run_id, START)  # as the attempt before would have, had its commit been on the way
    scribe.write(LONG_S)
    assert (scribe.failure, len(steps(db, run_id))) == (None, 1)


def test_between_two_attempts_there_is_a_pause_that_grows(db: Database, away: Away) -> None:
    _, scribe = begun(db)

    def has_tried(now_s: float) -> bool:
        scribe.failure = None
        scribe.write(now_s)
        return scribe.failure is not None

    with away():
        attempts = [tenth / 10 for tenth in range(200) if has_tried(tenth / 10)]
    pauses = [round(later - earlier, 1) for earlier, later in pairwise(attempts)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_the_end_waits_for_the_database(db: Database, away: Away) -> None:
    run_id, scribe = begun(db)
    scribe.write(0.0)
    scribe.add([STEP], PROGRESS)
    with away():
        assert not scribe.end(END, LONG_S)
        assert not scribe.end(END, 2 * LONG_S)
        assert scribe.num_unwritten == 1
    assert scribe.end(END, 3 * LONG_S)
    assert (get_run(db, run_id).status, len(steps(db, run_id))) == ("completed", 1)


def test_too_many_rows_lose_their_density_and_that_is_counted(db: Database, away: Away) -> None:
    run_id, scribe = begun(db, Backlog(limit=10))
    with away():
        scribe.add([replace(STEP, time_s=float(number)) for number in range(40)], PROGRESS)
        scribe.write(0.0)
    scribe.write(LONG_S)
    rows = steps(db, run_id)
    assert scribe.num_merged == 40 - len(rows) > 0
    assert sum(row["num_samples"] for row in rows) == 40 * STEP.num_samples


def test_a_second_recorder_ends_the_recording_not_the_run(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    run_id, scribe = begun(db)
    scribe.write(0.0)
    RunWriter(db, run_id).write([step_row()])
    scribe.add([STEP], PROGRESS)
    scribe.write(LONG_S)
    assert scribe.has_given_up
    assert scribe.failure is not None
    assert "another recorder feeds it" in scribe.failure
    assert "the run is no longer recorded; training goes on" in caplog.text
    scribe.add([STEP], PROGRESS)
    scribe.write(2 * LONG_S)
    assert scribe.end(END, 3 * LONG_S)
    assert len(steps(db, run_id)) == 1


def test_a_run_that_was_deleted_ends_the_recording(db: Database) -> None:
    _, scribe = begun(db)
    scribe.write(0.0)
    with db.write() as connection:
        connection.exec_driver_sql("DELETE FROM run")
    scribe.add([STEP], PROGRESS)
    scribe.write(LONG_S)
    assert scribe.has_given_up
    assert not isinstance(scribe.failure, DatabaseUnreachableError)


def test_a_large_backlog_goes_in_several_transactions(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.scribe.BATCH_ROWS", 3)
    run_id, scribe = begun(db)
    scribe.add([replace(STEP, global_step=number) for number in range(10)], PROGRESS)
    scribe.write(0.0)
    assert [row["global_step"] for row in steps(db, run_id)] == list(range(10))
