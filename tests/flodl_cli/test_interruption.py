"""A signal in the middle of a run, as a shell sends it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flodl_core import TrainedState
from flodl_store.database import open_database
from flodl_store.runs import get_run, list_runs
from tests.flodl_cli.conftest import WriteRecipe

LIMIT_S = 120
BLOCKS = """
import sys, threading
def dataset():
    print("loading", file=sys.stderr, flush=True)
    threading.Event().wait()
recipe = replace(digits, dataset=dataset)
"""
PROGRAM = [sys.executable, "-c", "import sys; from flodl_cli.main import main; sys.exit(main())"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_what_was_trained_is_saved(signum: signal.Signals, policy: str) -> None:
    arguments = ["train", "digits", "--devices", "cpu,cpu@1.5", "--epochs", "100000", "--policy", policy, "--json"]
    with subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            told = next(line for line in process.stderr if line.startswith("epoch 1/100000"))
            process.send_signal(signum)
            out, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert told
    assert process.returncode == 128 + signum
    assert "flodl: stopping; what has been trained is saved" in err
    assert "Traceback" not in err
    result = json.loads(out)
    assert result["status"] == "cancelled"
    assert 1 <= result["epochs"] < 100000
    assert result["num_samples"] > 0
    assert result["eval"]["accuracy"] > 0.5
    TrainedState.load(result["state_path"])
    with open_database() as db:
        run = get_run(db, result["run_id"])
    assert (run.status, run.num_samples) == ("cancelled", result["num_samples"])


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_before_training_a_signal_leaves_nothing(signum: signal.Signals, write_recipe: WriteRecipe, home: Path) -> None:
    name = write_recipe(BLOCKS)
    with subprocess.Popen([*PROGRAM, "train", name], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "loading\n"
            process.send_signal(signum)
            _, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 128 + signum
    assert err == "flodl: stopped before training began\n"
    assert list((home / "artifacts").iterdir()) == []
    with open_database() as db:
        assert list_runs(db).items == ()


def test_a_reader_that_has_gone_is_no_traceback() -> None:
    with subprocess.Popen([*PROGRAM, "--version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()  # long before the program, which imports first, writes into it
        assert process.stderr is not None
        err = process.stderr.read()
    assert (process.returncode, err) == (1, b"")
