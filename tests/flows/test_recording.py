"""A run and its record, with the engine and the recorder's thread as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flodl_core import DdpHandle, EpochMetrics
from flodl_store.artifacts import find_artifact
from flodl_store.database import Database
from flodl_store.graphs import get_graph
from flodl_store.home import RunFolder, create_run_folder
from flodl_store.params import RunParams
from flodl_store.run_id import new_run_id
from flodl_store.runs import NewRun, create_run, get_run, list_runs, request_cancel
from flodl_store.series import changes_after, epochs, events, steps
from flows.recorder import Recorder
from flows.recording import RecordedRun, Watchers
from flows.run_results import Trained
from flows.training import prepare, publish, train
from tests.databases import Away

PARAMS = RunParams(recipe="digits", devices=("cpu", "cpu@1.5"), epochs=2, batch_size=32, name="n")
Look = Callable[[DdpHandle], object]


class Looking:
    """A watcher that does something when the run is looked at."""

    def __init__(self, look: Look) -> None:
        self._look = look

    def started(self, handle: DdpHandle) -> None:
        pass

    def looked(self, handle: DdpHandle) -> None:
        self._look(handle)

    def epoch_ended(self, metrics: EpochMetrics) -> None:
        pass


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunFolder:
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "home"))
    return create_run_folder(new_run_id())


def begin(db: Database, folder: RunFolder, params: RunParams = PARAMS) -> RecordedRun:
    return RecordedRun.begin(db, params, run_id=folder.run_id, started_in=Path.cwd())


def trained(recorded: RecordedRun, look: Look, params: RunParams = PARAMS) -> Trained:
    prepared = prepare(params, started_in=Path.cwd())
    recorded.prepared(prepared.params)
    watcher = Watchers(recorded, Looking(look))
    return train(prepared, watcher=watcher, stop_requested=lambda: recorded.cancel_requested)


def test_a_run_is_recorded_from_pending_to_completed(db: Database, folder: RunFolder) -> None:
    seen = []
    with begin(db, folder) as recorded:
        assert get_run(db, folder.run_id).status == "pending"
        result = trained(recorded, lambda _: seen.append(get_run(db, folder.run_id).status))
        assert result.state is not None
        published = publish(result.state, folder)
        assert recorded.end("completed", trained=result, evaluation={"accuracy": 0.5}, published=published) is None
    assert set(seen) <= {"pending", "running"}
    run = get_run(db, folder.run_id)
    assert (run.status, run.name, run.epoch, run.eval) == ("completed", "n", 2, {"accuracy": 0.5})
    assert (run.num_samples, run.num_syncs, run.avg_loss) == (
        result.totals.num_samples,
        result.num_syncs,
        result.metrics[-1].avg_loss,
    )
    assert run.git_commit is not None
    assert len(run.git_commit) == 40
    changes = changes_after(db, folder.run_id, 0, 10**6)
    assert sum(step["num_samples"] for step in changes.steps) == result.totals.num_samples
    assert [epoch["avg_loss"] for epoch in changes.epochs] == [metrics.avg_loss for metrics in result.metrics]
    seqs = [row["seq"] for part in (changes.steps, changes.epochs, changes.events) for row in part]
    assert sorted(seqs) == list(range(1, run.last_seq + 1))
    state = find_artifact(db, folder.run_id, "state")
    assert state is not None
    assert (state.file, state.sha256) == (folder.state_path, published.state_sha256)
    assert run.graph_hash is not None
    assert get_graph(db, run.graph_hash) is not None


def test_a_cancel_in_the_database_stops_the_run(db: Database, folder: RunFolder) -> None:
    params = PARAMS.model_copy(update={"epochs": 10**6})
    with begin(db, folder, params) as recorded:
        result = trained(recorded, lambda _: request_cancel(db, folder.run_id), params)
        assert result.status == "cancelled"
        recorded.end("cancelled", trained=result)
    assert get_run(db, folder.run_id).status == "cancelled"


def test_training_goes_on_while_the_database_is_away(db: Database, folder: RunFolder, away: Away) -> None:
    with begin(db, folder) as recorded:
        with away():
            result = trained(recorded, lambda _: None)
            assert (result.status, len(result.metrics)) == ("completed", 2)
        assert recorded.end("completed", trained=result) is None
    assert get_run(db, folder.run_id).status == "completed"
    assert sum(step["num_samples"] for step in steps(db, folder.run_id)) == result.totals.num_samples
    assert len(epochs(db, folder.run_id)) == 2


def test_what_the_database_lacks_in_the_end_is_told(
    db: Database, folder: RunFolder, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.recording.DRAIN_S", 0.0)
    with begin(db, folder) as recorded, away():
        result = trained(recorded, lambda _: None)
        assert result.state is not None
        lacking = recorded.end("completed", trained=result, published=publish(result.state, folder))
    assert lacking is not None
    assert lacking.startswith("the run is not recorded to its end (")
    assert "rows are missing): the database " in lacking
    assert get_run(db, folder.run_id).status == "pending"


def test_an_error_that_leaves_with_it_is_the_runs(db: Database, folder: RunFolder) -> None:
    def fail() -> None:
        with begin(db, folder):
            raise RuntimeError("boom\nand more")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    run = get_run(db, folder.run_id)
    assert (run.status, run.error) == ("failed", "RuntimeError: boom and more")


def test_a_stop_that_leaves_with_it_is_a_cancel(db: Database, folder: RunFolder) -> None:
    def stop() -> None:
        with begin(db, folder):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert get_run(db, folder.run_id).status == "cancelled"


def test_what_never_started_can_be_withdrawn(db: Database, folder: RunFolder) -> None:
    with begin(db, folder) as recorded:
        recorded.withdraw()
    assert list_runs(db).items == ()


def test_a_run_that_waits_is_taken_over(db: Database, folder: RunFolder) -> None:
    create_run(db, NewRun.of(PARAMS, id=folder.run_id))
    with RecordedRun.begin(db, PARAMS, run_id=folder.run_id, started_in=Path.cwd(), flow_run_id="flow") as recorded:
        recorded.end("failed", error="none")
    assert get_run(db, folder.run_id).flow_run_id == "flow"


def test_closing_twice_is_no_trouble(db: Database, folder: RunFolder) -> None:
    create_run(db, NewRun.of(PARAMS, id=folder.run_id))
    recorder = Recorder(db, folder.run_id)
    assert recorder.close(None) is None
    assert recorder.close(None) is None
    assert get_run(db, folder.run_id).status == "pending"


def test_every_event_of_the_engine_is_recorded(db: Database, folder: RunFolder) -> None:
    with begin(db, folder) as recorded:
        result = trained(recorded, lambda _: None)
        recorded.end("completed", trained=result)
    kinds = [event["kind"] for event in events(db, folder.run_id)]
    assert (kinds[0], kinds[-1]) == ("run_started", "run_ended")
    assert kinds.count("epoch_ended") == 2
    assert "sync" in kinds
