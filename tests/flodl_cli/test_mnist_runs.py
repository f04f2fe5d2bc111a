"""MNIST, one epoch, every policy and backend: every sample once, and as accurate as one device alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flodl_cli.main import main
from tests.data_paths import flodl_data

TOLERANCE = 0.015


def train_mlp(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["train", "mnist-mlp", "--epochs", "1", "--json", *arguments]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_two_unlike_workers_do_as_well_as_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLODL_DATA", str(flodl_data()))
    alone = train_mlp(capsys, "--devices", "cpu")
    assert alone["num_samples"] == 60000
    for policy in ("sync", "cadence", "async"):
        for backend in ("gloo", "cpu"):
            result = train_mlp(capsys, "--devices", "cpu,cpu@2.5", "--policy", policy, "--backend", backend)
            assert (result["status"], result["num_samples"]) == ("completed", 60000), (policy, backend)
            assert abs(result["eval"]["accuracy"] - alone["eval"]["accuracy"]) <= TOLERANCE, (policy, backend)
