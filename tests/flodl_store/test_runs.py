"""A run's way, and how runs are found."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from flodl_store.database import Database
from flodl_store.errors import CursorError, RunStateError, UnknownRunError
from flodl_store.params import RunParams
from flodl_store.runs import (
    NewRun,
    RunProgress,
    RunStatus,
    beat,
    cancel_requested,
    claim_run,
    create_run,
    end_run,
    get_run,
    list_runs,
    request_cancel,
    resolve_run_id,
    start_run,
    withdraw_run,
)
from flodl_store.writer import RunWriter
from tests.databases import FakeClock
from tests.flodl_store.rows import NEW, START, epoch, event, new_run, running, step

DONE = RunProgress(
    epoch=3,
    avg_loss=math.nan,
    num_samples=300,
    num_batches=20,
    num_syncs=4,
    capacity_efficiency=0.97,
    anchor=10,
    global_step=20,
    wall_s=12.5,
)


def names(db: Database, **wanted: object) -> list[str | None]:
    return [run.name for run in list_runs(db, **wanted).items]  # type: ignore[arg-type]  # what a test asks for


def test_a_new_run_is_pending(db: Database, clock: FakeClock) -> None:
    run = new_run(db, name="first", tags=("a", "ü"), notes="n", flow_run_id="f", git_commit="c", version="1")
    assert (run.status, run.created_at, run.started_at, run.workers) == ("pending", clock.now, None, ())
    assert (run.name, run.tags, run.notes, run.flow_run_id, run.git_commit) == ("first", ("a", "ü"), "n", "f", "c")
    assert (run.config, run.epoch, run.avg_loss, run.last_seq) == ({"epochs": 3}, 0, None, 0)
    assert get_run(db, run.id) == run


def test_a_run_of_parameters_holds_all_of_them() -> None:
    params = RunParams(recipe="digits", devices=("cpu", "cpu@2"), epochs=4, batch_size=8, name="n", tags=("t",))
    new = NewRun.of(params, id="x" * 26)
    assert (new.recipe, new.world_size, new.num_epochs, new.batch_size, new.name, new.tags) == (
        *("digits", 2, 4, 8, "n"),
        ("t",),
    )
    assert new.config == params.model_dump(mode="json")


def test_a_run_is_made_once(db: Database) -> None:
    run = new_run(db)
    with pytest.raises(RunStateError, match=run.id):
        new_run(db, id=run.id)


def test_a_run_starts_with_what_the_engine_knows(db: Database, clock: FakeClock) -> None:
    run = new_run(db)
    clock.advance(5)
    assert start_run(db, run.id, START) == 1
    started = get_run(db, run.id)
    assert (started.status, started.started_at, started.heartbeat_at) == ("running", clock.now, clock.now)
    assert (started.backend, started.world_size, started.total_samples) == ("cpu", 2, 300)
    assert (started.config, started.training_meta) == (START.config, START.training_meta)
    assert started.workers == START.workers


def test_a_run_starts_once(db: Database) -> None:
    run_id = running(db)
    with pytest.raises(RunStateError, match="is running and cannot start again"):
        start_run(db, run_id, START)


def test_the_first_end_counts(db: Database, clock: FakeClock) -> None:
    run_id = running(db)
    clock.advance(5)
    assert end_run(db, run_id, "failed", "boom", progress=DONE, evaluation={"loss": math.inf})
    ended_at = clock.now
    clock.advance(5)
    assert not end_run(db, run_id, "completed")
    run = get_run(db, run_id)
    assert (run.status, run.error, run.ended_at) == ("failed", "boom", ended_at)
    assert (run.epoch, run.num_samples, run.num_syncs, run.anchor, run.wall_s) == (3, 300, 4, 10, 12.5)
    assert run.avg_loss is not None
    assert math.isnan(run.avg_loss)
    assert run.eval == {"loss": math.inf}


@pytest.mark.parametrize("seconds", [29.9, 30.0])
def test_a_heartbeat_keeps_a_run_alive_for_thirty_seconds(db: Database, clock: FakeClock, seconds: float) -> None:
    run_id = running(db)
    clock.advance(seconds)
    assert get_run(db, run_id).status == "running"
    beat(db, run_id)
    clock.advance(seconds)
    assert get_run(db, run_id).status == "running"


def test_a_run_without_a_heartbeat_is_lost(db: Database, clock: FakeClock) -> None:
    run_id = running(db)
    clock.advance(30.1)
    assert get_run(db, run_id).status == "lost"
    beat(db, run_id)  # it lived after all
    assert get_run(db, run_id).status == "running"


def test_a_pending_run_is_lost_only_if_it_ever_beat(db: Database, clock: FakeClock) -> None:
    waiting, preparing = new_run(db), new_run(db)
    beat(db, preparing.id)
    clock.advance(10**6)
    assert (get_run(db, waiting.id).status, get_run(db, preparing.id).status) == ("pending", "lost")


def test_a_run_that_has_ended_is_never_lost(db: Database, clock: FakeClock) -> None:
    run_id = running(db)
    end_run(db, run_id, "completed")
    clock.advance(10**6)
    beat(db, run_id)
    assert get_run(db, run_id).status == "completed"


def test_a_cancel_reaches_whoever_beats(db: Database) -> None:
    run_id = running(db)
    assert not beat(db, run_id)
    assert request_cancel(db, run_id)
    assert beat(db, run_id)
    assert cancel_requested(db, run_id)
    end_run(db, run_id, "cancelled")
    assert not request_cancel(db, run_id)


def test_a_pending_run_can_be_claimed(db: Database) -> None:
    run = new_run(db, name="asked")
    claimed = claim_run(db, replace(NEW, id=run.id, name="asked", flow_run_id="f"))
    assert (claimed.id, claimed.flow_run_id, claimed.created_at) == (run.id, "f", run.created_at)
    start_run(db, run.id, START)
    with pytest.raises(RunStateError, match="is running and cannot start again"):
        claim_run(db, replace(NEW, id=run.id))


def test_a_claim_makes_the_run_where_nobody_has(db: Database) -> None:
    assert claim_run(db, NEW).status == "pending"


def test_only_what_never_started_can_be_withdrawn(db: Database) -> None:
    pending, run_id = new_run(db).id, running(db)
    withdraw_run(db, pending)
    withdraw_run(db, run_id)
    assert [run.id for run in list_runs(db).items] == [run_id]


def test_a_beginning_or_latest_names_a_run(db: Database) -> None:
    ids = [f"01AAAAAAAAAAAAAAAAAAAAAAA{digit}" for digit in "12"] + ["01BAAAAAAAAAAAAAAAAAAAAAAA"]
    for run_id in ids:
        new_run(db, id=run_id)
    assert get_run(db, "latest").id == ids[2]
    assert get_run(db, ids[0]).id == ids[0]
    assert resolve_run_id(db, "01b") == ids[2]
    assert resolve_run_id(db, ids[1].lower()) == ids[1]
    with pytest.raises(UnknownRunError, match=f"more than one run begins with '01A', {ids[1]} and {ids[0]} among"):
        get_run(db, "01A")


@pytest.mark.parametrize("text", ["01C", "", "%", "_1", "no such", "01AAAAAAAAAAAAAAAAAAAAAAAAA0", "'; --", "\x00"])
def test_other_names_are_unknown(db: Database, text: str) -> None:
    new_run(db, id="01AAAAAAAAAAAAAAAAAAAAAAA1")
    with pytest.raises(UnknownRunError, match="there is no run"):
        get_run(db, text)


def test_without_runs_there_is_no_latest(db: Database) -> None:
    with pytest.raises(UnknownRunError, match="there is no run yet"):
        get_run(db, "latest")


def test_what_needs_a_run_names_the_one_that_is_missing(db: Database) -> None:
    missing = "01" + 24 * "A"
    for action in (
        lambda: start_run(db, missing, START),
        lambda: beat(db, missing),
        lambda: end_run(db, missing, "failed"),
        lambda: request_cancel(db, missing),
        lambda: cancel_requested(db, missing),
        lambda: RunWriter(db, missing),
    ):
        with pytest.raises(UnknownRunError, match=missing):
            action()


def test_pages_hold_every_run_once_newest_first(db: Database) -> None:
    ids = [new_run(db, id=f"01{number:024d}").id for number in range(7)]
    found, cursor = [], None
    for _ in range(4):
        page = list_runs(db, limit=2, cursor=cursor)
        found += [run.id for run in page.items]
        cursor = page.next
        new_run(db)  # newer than all: no later page moves for it
    assert found == ids[::-1]
    assert cursor is None


def test_a_cursor_that_is_none_is_refused(db: Database) -> None:
    with pytest.raises(CursorError, match="'x' is no cursor"):
        list_runs(db, cursor="x")


def test_runs_are_listed_by_the_status_that_is_shown(db: Database, clock: FakeClock) -> None:
    lost = running(db, name="lost")
    new_run(db, name="pending")
    beat(db, new_run(db, name="lost pending").id)
    clock.advance(31)
    running(db, name="running")
    beat(db, new_run(db, name="preparing").id)
    end_run(db, running(db, name="completed"), "completed")
    shown: dict[RunStatus, list[str]] = {
        "pending": ["pending", "preparing"],
        "running": ["running"],
        "lost": ["lost", "lost pending"],
        "completed": ["completed"],
        "failed": [],
    }
    for status, wanted in shown.items():
        assert sorted(str(name) for name in names(db, status=status)) == wanted
        assert {run.status for run in list_runs(db, status=status).items} <= {status}
    assert get_run(db, lost).status == "lost"


def test_runs_are_found_by_their_words(db: Database) -> None:
    new_run(db, name="First Try", tags=("night", "50%"))
    new_run(db, name="second", notes="a_b", recipe="mnist-mlp")
    for text, wanted in {
        "first t": ["First Try"],
        "NIGHT": ["First Try"],
        "50%": ["First Try"],
        "a_b": ["second"],
        "axb": [],
        "%": ["First Try"],
        "mnist": ["second"],
        "\\": [],
    }.items():
        assert names(db, search=text) == wanted


def test_a_run_takes_its_rows_with_it(db: Database) -> None:
    run_id = running(db)
    RunWriter(db, run_id).write([step(), event(), epoch()])
    with db.write() as connection:
        connection.exec_driver_sql("DELETE FROM run")
    with db.read() as connection:
        for table in ("step", "event", "epoch", "epoch_rank", "epoch_scalar", "worker"):
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == 0


def test_times_survive_in_utc(db: Database, clock: FakeClock) -> None:
    clock.now = clock.now.astimezone() + timedelta(microseconds=1)
    run = new_run(db)
    assert run.created_at == clock.now
    assert run.created_at.utcoffset() == timedelta(0)


def test_create_run_gives_back_what_it_made(db: Database) -> None:
    run = create_run(db, NEW)
    assert (run.id, run.recipe, run.seed) == (NEW.id, "digits", 1)
