"""``flodl train``, run in this process: results, files, failures."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch

from flodl_cli.main import main
from flodl_core import TrainedState
from flodl_store.artifacts import find_artifact
from flodl_store.database import open_database
from flodl_store.home import sha256_of
from flodl_store.runs import RunView, get_run, list_runs
from flodl_store.series import changes_after
from flows.recipes.digits import recipe as digits
from tests.flodl_cli.conftest import WriteRecipe

RESULT_KEYS = [
    *("run_id", "attempt", "status", "recipe", "policy", "backend", "devices", "workers", "epochs", "avg_loss"),
    *("eval", "num_samples", "num_batches", "num_syncs", "capacity_efficiency", "wall_s", "state_path"),
    "state_sha256",
]
TWO = ["--devices", "cpu,cpu@1.5"]
NUM_SAMPLES = len(digits.dataset()[0])


def train(*arguments: str) -> int:
    return main(["train", *arguments])


def only_run(home: Path) -> Path:
    (folder,) = (home / "artifacts").iterdir()
    return folder


def record() -> RunView:
    with open_database() as db:
        return get_run(db, "latest")


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
@pytest.mark.parametrize("backend", ["gloo", "cpu"])
def test_a_run_ends_with_one_json_object(
    policy: str, backend: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("digits", *TWO, "--epochs", "2", "--policy", policy, "--backend", backend, "--json") == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert list(result) == RESULT_KEYS
    assert (result["status"], result["policy"], result["backend"]) == ("completed", policy, backend)
    assert (result["devices"], result["epochs"]) == (["cpu", "cpu@1.5"], 2)
    assert result["num_samples"] == 2 * NUM_SAMPLES
    assert result["num_syncs"] > 0
    assert set(result["eval"]) == {"accuracy", "loss"}
    assert Path(result["state_path"]) == only_run(home) / "state.safetensors"
    assert result["state_sha256"] == sha256_of(Path(result["state_path"]))
    assert "epoch 2/2" in captured.err


def test_the_saved_state_evaluates_to_the_printed_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("digits", *TWO, "--epochs", "1", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    model = digits.model(torch.device("cpu"))
    model.load_state_dict(TrainedState.load(result["state_path"]).state_dict(), strict=True)
    assert digits.evaluate is not None
    assert digits.evaluate(model)["accuracy"] == result["eval"]["accuracy"]


def test_a_person_gets_a_closing_table_and_the_paths(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("digits", *TWO, "--epochs", "1", "-p", "name=first") == 0
    out = capsys.readouterr().out
    assert "completed" in out
    assert f"{NUM_SAMPLES:,} in " in out
    assert f"state:  {only_run(home) / 'state.safetensors'}\n" in out
    assert "cpu@1.5" in out


def test_a_single_device_trains_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("digits", "--devices", "cpu", "--epochs", "1", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["status"], result["num_samples"], result["num_syncs"]) == ("completed", NUM_SAMPLES, 0)


def test_the_record_holds_parameters_and_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("digits", *TWO, "--epochs", "1", "--json", "-p", "tags=a,b") == 0
    result, run = json.loads(capsys.readouterr().out), record()
    assert (run.id, run.status, run.error) == (result["run_id"], "completed", None)
    assert run.tags == ("a", "b")
    assert (run.config["tags"], run.config["batch_size"], run.batch_size) == (["a", "b"], *2 * (digits.batch_size,))
    figures = (
        "num_samples",
        "num_batches",
        "num_syncs",
        "capacity_efficiency",
        "wall_s",
        "avg_loss",
        "eval",
        "backend",
    )
    assert {name: getattr(run, name) for name in figures} == {name: result[name] for name in figures}
    assert (run.epoch, run.num_epochs, run.total_samples) == (1, 1, NUM_SAMPLES)
    assert [(worker.device, worker.slowdown) for worker in run.workers] == [("cpu", 1.0), ("cpu@1.5", 1.5)]
    assert run.started_at is not None
    assert run.ended_at is not None
    assert run.created_at <= run.started_at <= run.ended_at
    assert run.graph_hash is not None


def test_every_step_epoch_and_event_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("digits", *TWO, "--epochs", "2", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    with open_database() as db:
        changes = changes_after(db, result["run_id"], 0)
    assert sum(step["num_samples"] for step in changes.steps) == 2 * NUM_SAMPLES
    assert sum(step["num_batches"] for step in changes.steps) == result["num_batches"]
    assert [epoch["epoch"] for epoch in changes.epochs] == [0, 1]
    assert changes.epochs[-1]["avg_loss"] == result["avg_loss"]
    assert changes.epochs[-1]["eval"] == result["eval"]
    kinds = [event["kind"] for event in changes.events]
    assert (kinds[0], kinds[-1], kinds.count("epoch_ended")) == ("run_started", "run_ended", 2)
    assert (
        sum(event["payload"]["num_syncs"] for event in changes.events if event["kind"] == "sync")
        == (result["num_syncs"])
    )


def test_state_and_log_are_recorded_with_their_checksums(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("digits", *TWO, "--epochs", "1", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    with open_database() as db:
        state, log = (find_artifact(db, result["run_id"], kind) for kind in ("state", "log"))
    assert state is not None
    assert log is not None
    assert (state.file, state.sha256) == (Path(result["state_path"]), result["state_sha256"])
    assert (log.file, log.sha256) == (only_run(home) / "run.log", sha256_of(only_run(home) / "run.log"))


def test_the_log_names_the_devices(home: Path) -> None:
    assert train("digits", *TWO, "--epochs", "1") == 0
    assert "2 devices (heterogeneous)" in (only_run(home) / "run.log").read_text()


def test_the_closing_epochs_accuracy_is_good_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("digits", *TWO, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["epochs"] == 10
    assert result["eval"]["accuracy"] >= 0.95


def test_a_recipe_of_the_folder_trains(write_recipe: WriteRecipe, capsys: pytest.CaptureFixture[str]) -> None:
    name = write_recipe("recipe = replace(digits, name='mine', evaluate=None, epochs=1)")
    assert train(name, *TWO, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["recipe"], result["eval"], result["epochs"]) == (name, {}, 1)


def test_one_worker_that_fails_leaves_the_others_state(
    write_recipe: WriteRecipe, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write_recipe(
        "def step(call, model, batch):\n"
        "    if call == 30:\n"
        "        raise RuntimeError('boom at 30')\n"
        "    return digits.loss(model, batch)\n"
        "recipe = replace(digits, loss=loss)\n"
    )
    assert train(name, *TWO, "--json") == 1
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["status"] == "failed"
    TrainedState.load(result["state_path"])
    last = captured.err.splitlines()[-1]
    assert last.startswith("flodl: error: rank ")
    assert "RuntimeError: boom at 30" in last
    assert "the average of the other workers is saved" in last
    assert "Traceback" not in captured.err
    assert "Traceback" in (only_run(home) / "run.log").read_text()
    assert record().status == "failed"
    assert "boom at 30" in str(record().error)


def test_a_run_in_which_every_worker_fails_is_one_line(
    write_recipe: WriteRecipe, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write_recipe(
        "both = threading.Barrier(2)\n"
        "def step(call, model, batch):\n"
        "    both.wait(60)\n"
        "    raise RuntimeError('boom')\n"
        "recipe = replace(digits, loss=loss)\n"
    )
    assert train(name, *TWO, "--json") == 1
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert (result["status"], result["state_path"], result["avg_loss"]) == ("failed", None, None)
    last = captured.err.splitlines()[-1]
    assert last.startswith("flodl: error: ")
    assert "boom" in last
    assert "Traceback" not in captured.err
    assert "RuntimeError: boom" in (only_run(home) / "run.log").read_text()


def test_data_that_fail_to_load_are_one_line_with_the_traceback_in_the_log(
    write_recipe: WriteRecipe, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write_recipe("recipe = replace(digits, dataset=lambda: 1 / 0)")
    assert train(name, *TWO, "--json") == 1
    err = capsys.readouterr().err
    assert err.startswith("flodl: error: ZeroDivisionError: division by zero (log: ")
    assert err.count("\n") == 1
    assert "Traceback" in (only_run(home) / "run.log").read_text()
    assert (record().status, record().error) == ("failed", "ZeroDivisionError: division by zero")


def test_an_evaluation_that_fails_leaves_the_state(
    write_recipe: WriteRecipe, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write_recipe(
        "def evaluate(model):\n"
        "    with lock:\n"
        "        state['calls'] += 1\n"
        "        call = state['calls']\n"
        "    if call == 2:\n"  # the first is the epoch's
        "        raise RuntimeError('no figures')\n"
        "    return {'accuracy': 1.0}\n"
        "recipe = replace(digits, evaluate=evaluate, epochs=1)\n"
    )
    assert train(name, *TWO, "--json") == 1
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert (result["status"], result["eval"]) == ("failed", {})
    assert Path(result["state_path"]).is_file()
    assert "the state is saved, but its evaluation failed: RuntimeError: no figures" in captured.err


def test_figures_that_are_not_finite_are_strings(write_recipe: WriteRecipe, capsys: pytest.CaptureFixture[str]) -> None:
    name = write_recipe("recipe = replace(digits, evaluate=lambda model: {'loss': float('nan')}, epochs=1)")
    assert train(name, *TWO, "--json") == 0
    result = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert result["eval"] == {"loss": "NaN"}


def test_a_model_without_parameters_is_the_callers_to_mend(
    write_recipe: WriteRecipe, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write_recipe("recipe = replace(digits, model=lambda device: torch.nn.Flatten())")
    assert train(name, *TWO) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("flodl: error: ")
    assert "parameter" in last
    assert list((home / "artifacts").iterdir()) == []
    with open_database() as db:
        assert list_runs(db).items == ()


def test_a_loss_that_is_not_a_number_is_told(write_recipe: WriteRecipe, capsys: pytest.CaptureFixture[str]) -> None:
    name = write_recipe(
        "def step(call, model, batch):\n"
        "    return digits.loss(model, batch) * float('nan')\n"
        "recipe = replace(digits, loss=loss, epochs=1)\n"
    )
    assert train(name, *TWO, "--json", "-p", "on_nonfinite=stop") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "finite" in last


def test_a_batch_larger_than_the_data_trains_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("digits", *TWO, "--epochs", "1", "--batch-size", "100000", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["num_samples"] == NUM_SAMPLES
    assert math.isfinite(result["avg_loss"])


def test_a_database_that_goes_away_does_not_stop_training(
    write_recipe: WriteRecipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flodl_store.database.BUSY_TIMEOUT_S", 0)
    monkeypatch.setattr("flows.recording.DRAIN_S", 0)
    name = write_recipe(
        "import os, sqlite3\n"
        "def step(call, model, batch):\n"
        "    if call == 5:\n"
        "        path = os.environ['FLODL_HOME'] + '/flodl.db'\n"
        "        state['other'] = sqlite3.connect(path, timeout=60, check_same_thread=False)\n"
        "        state['other'].execute('BEGIN IMMEDIATE')\n"
        "    return digits.loss(model, batch)\n"
        "recipe = replace(digits, loss=loss, epochs=2)\n"
    )
    try:
        assert train(name, *TWO, "--json") == 0
    finally:
        sys.modules["written_recipe"].state["other"].close()
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert (result["status"], result["num_samples"]) == ("completed", 2 * NUM_SAMPLES)
    assert Path(result["state_path"]).is_file()
    assert "database is locked" in result["not_recorded"]
    warnings = [line for line in captured.err.splitlines() if "warning" in line]
    assert warnings[0].startswith("flodl: warning: training goes on, but the database ")
    assert warnings[1:] == [f"flodl: warning: {result['not_recorded']}"]
