"""``flodl runs``, ``show``, ``state`` and ``db``: what they say of runs that were recorded."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from flodl_cli.main import main
from flodl_store.artifacts import artifact_root, save_artifact
from flodl_store.database import Database, connect_database, open_database
from flodl_store.home import sha256_of
from flodl_store.runs import RunProgress, end_run, get_run
from flodl_store.schema import upgrade
from flodl_store.writer import RunWriter
from tests.flodl_store.rows import epoch, new_run, running
from tests.postgres import PostgresServer

LIST_KEYS = {
    *("id", "name", "status", "recipe", "policy", "backend", "world_size", "epoch", "num_epochs", "avg_loss"),
    *("flow_run_id", "created_at"),
}
PROGRESS = RunProgress(
    epoch=1,
    avg_loss=math.nan,
    num_samples=100,
    num_batches=7,
    num_syncs=2,
    capacity_efficiency=0.97,
    anchor=10,
    global_step=7,
    wall_s=1.5,
)


@pytest.fixture
def recorded(home: Path) -> str:
    """The id of a run that has completed and left a state."""
    with open_database() as db:
        run_id = running(db, name="first")
        RunWriter(db, run_id).write([epoch(0)], progress=PROGRESS)
        save_state(db, run_id, b"weights")
        end_run(db, run_id, "completed", evaluation={"accuracy": 0.9})
    assert home.is_dir()
    return run_id


def save_state(db: Database, run_id: str, data: bytes) -> Path:
    path = artifact_root() / run_id / "state.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    save_artifact(db, run_id, "state", path)
    return path


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def last_error(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("flodl: error: ")
    return captured.err.removeprefix("flodl: error: ").rstrip("\n")


def test_a_new_home_has_no_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert json_of(capsys, "runs") == []
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "no runs yet: flodl train digits makes one\n"


def test_runs_are_listed_newest_first(recorded: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open_database() as db:
        newer = new_run(db, name="second", recipe="mnist-mlp").id
    found = json_of(capsys, "runs")
    assert [run["id"] for run in found] == [newer, recorded]
    assert all(set(run) >= LIST_KEYS for run in found)
    assert (found[1]["status"], found[1]["epoch"], found[1]["avg_loss"]) == ("completed", 1, "NaN")
    assert [run["id"] for run in json_of(capsys, "runs", "--limit", "1")] == [newer]
    assert [run["id"] for run in json_of(capsys, "runs", "--status", "completed")] == [recorded]
    assert [run["id"] for run in json_of(capsys, "runs", "--search", "MNIST")] == [newer]
    assert main(["runs", "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert newer in out
    assert recorded not in out
    assert "and more: --limit" in out


def test_a_status_that_there_is_not_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--status", "done"]) == 2
    assert last_error(capsys) == (
        "--status must be one of pending, running, completed, failed, cancelled, lost, not 'done'"
    )


def test_a_run_is_shown_with_all_that_is_known(recorded: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "show", recorded)
    assert (found["id"], found["status"], found["eval"], found["config"]["lr"]) == (
        *(recorded, "completed", {"accuracy": 0.9}),
        0.1,
    )
    assert [worker["device"] for worker in found["workers"]] == ["cpu", "cpu@2.5"]
    assert [(row["epoch"], row["avg_loss"], len(row["ranks"])) for row in found["epochs"]] == [(0, 0.5, 2)]
    (artifact,) = found["artifacts"]
    assert (artifact["kind"], artifact["sha256"]) == ("state", sha256_of(Path(artifact["file"])))


@pytest.mark.parametrize("name", ["latest", "beginning", "whole"])
def test_a_person_sees_figures_epochs_and_files(recorded: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", {"beginning": recorded[:25].lower(), "whole": recorded}.get(name, name)]) == 0
    out = capsys.readouterr().out
    assert f"{recorded}  completed" in out
    assert "cpu@2.5" in out
    assert "eval accuracy" in out
    assert f"state:  {artifact_root()}/{recorded}/state.safetensors\n" in out


@pytest.mark.parametrize("command", ["show", "state"])
@pytest.mark.parametrize("name", ["01AAAAAAAAAAAAAAAAAAAAAAAA", "no-such-run", "latest"])
def test_a_run_that_there_is_not_is_one_line(command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, name]) == 2
    assert last_error(capsys).startswith("there is no run")


def test_a_state_is_found_and_copied(recorded: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = artifact_root() / recorded / "state.safetensors"
    assert main(["state", recorded]) == 0
    assert capsys.readouterr().out == f"{path}\nsha256 {sha256_of(path)}, 7 bytes\n"
    target = tmp_path / "mine.safetensors"
    found = json_of(capsys, "state", "latest", "-o", str(target))
    assert found == {
        "run_id": recorded,
        "path": str(path),
        "size_bytes": 7,
        "sha256": sha256_of(path),
        "output": str(target),
    }
    assert target.read_bytes() == b"weights"


def test_a_state_goes_to_standard_output(recorded: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["state", recorded, "-o", "-"]) == 0
    assert capfdbinary.readouterr().out == b"weights"


def test_standard_output_is_not_wanted_twice(recorded: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", recorded, "-o", "-", "--json"]) == 2
    assert "choose one" in last_error(capsys)


def test_a_place_that_cannot_be_written_to_is_one_line(
    recorded: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target in (tmp_path, tmp_path / "not there" / "x"):
        assert main(["state", recorded, "-o", str(target)]) == 2
        assert last_error(capsys).startswith(f"cannot write to {target}: ")


def test_a_run_without_a_state_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with open_database() as db:
        run_id = running(db)
    assert main(["state", run_id]) == 2
    assert last_error(capsys) == f"run {run_id} is running and has no trained state"


def test_a_state_that_has_changed_or_gone_is_not_handed_out(recorded: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = artifact_root() / recorded / "state.safetensors"
    path.write_bytes(b"WEIGHTS")
    assert main(["state", recorded]) == 1
    assert last_error(capsys) == f"{path} is not the file that run {recorded} saved: it has changed"
    shutil.rmtree(path.parent)
    assert main(["state", recorded]) == 2
    assert "is not at" in last_error(capsys)


def test_looking_at_a_database_makes_none(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "db", "status")
    assert found == {"database": f"sqlite:///{home}/flodl.db", "current": None, "needed": "0001", "up_to_date": False}
    assert not home.exists()
    assert main(["db", "status"]) == 0
    assert "flodl db upgrade" in capsys.readouterr().out


def test_an_upgrade_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "db", "upgrade")
    assert (found["before"], found["current"], found["up_to_date"]) == (None, "0001", True)
    assert json_of(capsys, "db", "upgrade")["before"] == "0001"
    assert main(["db", "status"]) == 0
    assert "version 0001, up to date" in capsys.readouterr().out


def test_postgresql_is_upgraded_when_asked(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with postgres.database() as name:
        monkeypatch.setenv("FLODL_DATABASE_URL", postgres.url(name))
        assert main(["runs"]) == 3
        assert last_error(capsys).endswith("has no tables of flodl's yet: run flodl db upgrade")
        assert main(["db", "upgrade"]) == 0
        capsys.readouterr()
        assert json_of(capsys, "runs") == []


@pytest.mark.parametrize(
    ("url", "code"), [("mysql://x/y", 2), ("nonsense", 2), ("postgresql://me:secret@127.0.0.1:1/x", 3)]
)
@pytest.mark.parametrize(
    "arguments",
    [["runs"], ["show", "latest"], ["state", "latest"], ["db", "status"], ["db", "upgrade"], ["train", "digits"]],
    ids=" ".join,
)
def test_a_database_that_cannot_be_used_is_one_line(
    url: str,
    code: int,
    arguments: list[str],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FLODL_DATABASE_URL", url)
    assert main(arguments) == code
    assert "secret" not in last_error(capsys)
    assert not home.exists()


def test_a_run_on_postgresql_is_recorded_there(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with postgres.database() as name:
        monkeypatch.setenv("FLODL_DATABASE_URL", postgres.url(name))
        with connect_database() as db:
            upgrade(db)
            assert main(["train", "digits", "--devices", "cpu,cpu@1.5", "--epochs", "1", "--json"]) == 0
            result = json.loads(capsys.readouterr().out)
            assert get_run(db, result["run_id"]).num_samples == result["num_samples"]
