"""The command as a whole: help, version, and one line for each kind of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flodl_cli.main import main


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("flodl 0.")


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "train" in out
    assert "recipes" in out


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert "Usage" in captured.out
    assert captured.err == ""


def test_recipes_are_listed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert "digits" in out
    assert "mnist-lenet" in out


def test_recipes_are_listed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows["mnist-mlp"]) == {"name", "description", "epochs", "batch_size", "lr"}
    assert rows["mnist-mlp"]["batch_size"] == 64


BAD_INPUT = {
    "unknown command": (["trian"], "No such command 'trian'"),
    "unknown option": (["train", "digits", "--epoch", "3"], "No such option: --epoch"),
    "no recipe": (["train"], "Missing argument 'recipe'"),
    "epochs that are no number": (["train", "digits", "--epochs", "x"], "Invalid value for '--epochs'"),
    "negative epochs": (["train", "digits", "--epochs", "-3"], "epochs must be at least 1, not -3"),
    "batch size 0": (["train", "digits", "--batch-size", "0"], "batch_size must be at least 1, not 0"),
    "unknown policy": (["train", "digits", "--policy", "fast"], "policy must be one of sync, cadence, async"),
    "unknown backend": (["train", "digits", "--backend", "mpi"], "backend must be one of nccl, gloo, cpu"),
    "unknown device": (["train", "digits", "--devices", "tpu"], "devices[0] must look like cpu"),
    "empty device": (["train", "digits", "--devices", "cpu,"], "devices[1] must look like cpu"),
    "slowdown too small": (["train", "digits", "--devices", "cpu@0.5"], "slowdown must be from 1 to 1000, not 0.5"),
    "malformed -p": (["train", "digits", "-p", "epochs"], "-p wants key=value, not 'epochs'"),
    "unknown -p": (["train", "digits", "-p", "epoch=1"], "unknown parameter 'epoch': did you mean epochs?"),
    "given twice": (["train", "digits", "--epochs", "1", "-p", "epochs=1"], "epochs is given twice"),
    "unknown recipe": (["train", "digit"], "unknown recipe 'digit': did you mean digits?"),
    "unknown module": (["train", "no_such_module:recipe"], "there is no module 'no_such_module'"),
    "nccl without CUDA": (["train", "digits", "--backend", "nccl", "--devices", "cpu,cpu"], "backend nccl needs CUDA"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input_is_one_line_exit_code_2_and_leaves_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("flodl: error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not home.exists() or list((home / "artifacts").iterdir()) == []


def test_a_device_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--devices", "cpu,cuda:77"]) == 2
    assert "device 'cuda:77' asked for" in capsys.readouterr().err


def test_missing_data_name_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLODL_DATA", str(tmp_path / "nowhere"))
    assert main(["train", "mnist-mlp"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "set FLODL_DATA to a folder that holds mnist/" in err


def test_an_unwritable_home_names_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "file"))
    assert main(["train", "digits"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "set FLODL_HOME to a folder that you can write to" in err
