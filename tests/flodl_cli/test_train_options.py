"""Every parameter of a run, given to ``flodl train``, changes what the engine does."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from flodl_cli.main import main
from flodl_store.database import open_database
from flodl_store.params import RunParams
from flodl_store.runs import RunView, get_run
from flows.recipes.digits import recipe as digits
from tests.flodl_cli.conftest import WriteRecipe

TWO = ["--devices", "cpu,cpu", "--epochs", "1"]
NUM_SAMPLES = len(digits.dataset()[0])


def record() -> RunView:
    with open_database() as db:
        return get_run(db, "latest")


def trained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["train", "digits", "--json", *arguments]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert result["status"] == "completed"
    return result


SETTINGS = {
    "dispatch whole": (["--progressive-dispatch", "false"], {"progressive_dispatch": False}),
    "dispatch by the policy": (["--policy", "sync"], {"progressive_dispatch": False}),
    "guard": (["--divergence-threshold", "0.2"], {"divergence_threshold": 0.2}),
    "no guard": (["--divergence-threshold", "0"], {"divergence_threshold": None}),
    "guard by itself": ([], {"divergence_threshold": 0.05, "outer_lr": None, "progressive_dispatch": True}),
    "outer lr": (["--outer-lr", "0.5"], {"outer_lr": 0.5, "outer_momentum": 0.9, "outer_nesterov": True}),
    "outer momentum": (["--outer-momentum", "0.6"], {"outer_lr": 0.7, "outer_momentum": 0.6, "outer_nesterov": True}),
    "no momentum": (["--outer-momentum", "0"], {"outer_lr": 0.7, "outer_momentum": 0.0, "outer_nesterov": False}),
    "clipping": (["--max-grad-norm", "0.5"], {"max_grad_norm": 0.5}),
    "pace": (
        ["--anchor", "4", "--max-anchor", "8", "--overhead-target", "0.2", "--max-batch-diff", "5"],
        {"anchor": 4, "max_anchor": 8, "overhead_target": 0.2, "max_batch_diff": 5},
    ),
    "overshoot": (["--max-overshoot", "3"], {"max_overshoot": 3}),
    "scale": (["--lr-scale-ratio", "0"], {"lr_scale_ratio": 0.0, "lr_scale": 1.0}),
    "seed": (["--seed", "7"], {"seed": 7}),
    "nonfinite": (["--on-nonfinite", "stop"], {"on_nonfinite": "stop"}),
}


@pytest.mark.parametrize(("arguments", "expected"), SETTINGS.values(), ids=SETTINGS.keys())
def test_it_reaches_the_engine(
    arguments: list[str], expected: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    trained(capsys, *TWO, "--max-steps", "4", *arguments)
    meta = record().training_meta
    assert {name: meta[name] for name in expected} == expected


def test_so_many_batches_make_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    result = trained(capsys, *TWO, "--batch-size", "16", "--grad-accumulation", "4")
    assert (result["num_samples"], result["num_batches"]) == (NUM_SAMPLES, -(-NUM_SAMPLES // 64))


def test_a_limit_of_steps_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    result = trained(capsys, *TWO, "--max-steps", "7")
    assert (result["num_batches"], result["epochs"], result["avg_loss"]) == (7, 0, None)


def test_a_limit_of_time_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    result = trained(capsys, "--devices", "cpu,cpu", "--epochs", "1000000", "--max-time-s", "0.2")
    assert result["num_samples"] > 0
    assert record().training_meta["max_time_s"] == 0.2


def test_a_smaller_last_batch_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(capsys, *TWO, "--batch-size", "1000", "--drop-last")["num_samples"] == 1000


@pytest.mark.parametrize(
    ("arguments", "is_on"),
    [
        (["--amp"], True),
        (["-p", "amp=bfloat16"], True),
        (["-p", "amp=true"], True),
        (["-p", "amp=false"], False),
        ([], False),
    ],
)
def test_the_loss_is_computed_under_autocast(
    arguments: list[str], is_on: bool, write_recipe: WriteRecipe, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write_recipe(
        "def step(call, model, batch):\n"
        "    state['amp'] = (torch.is_autocast_enabled('cpu'), torch.get_autocast_dtype('cpu'))\n"
        "    return digits.loss(model, batch)\n"
        "recipe = replace(digits, loss=loss, evaluate=None)\n"
    )
    assert main(["train", name, *TWO, *arguments]) == 0
    assert sys.modules["written_recipe"].state["amp"][0] is is_on
    assert record().training_meta["amp"] == ("bfloat16" if is_on else None)


def test_name_and_tags_are_recorded() -> None:
    assert main(["train", "digits", *TWO, "--name", "first try", "--tags", "a, b"]) == 0
    assert (record().name, record().tags) == ("first try", ("a", "b"))


def test_every_parameter_has_an_option(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    others = [name for name in RunParams.model_fields if name != "recipe"]
    assert [name for name in others if f"--{name.replace('_', '-')} " not in out] == []
    assert "nccl, gloo, cpu" in out
    assert "0.01 to 0.5; default 0.03" in out


BAD_INPUT = {
    "outer optimizer under sync": (["--policy", "sync", "--outer-lr", "0.5"], "policy sync averages gradients"),
    "outer momentum under sync": (["--policy", "sync", "--outer-momentum", "0.5"], "policy sync averages gradients"),
    "outer lr 0": (["--outer-lr", "0"], "outer_lr must be above 0, not 0"),
    "outer momentum 1": (["--outer-momentum", "1"], "outer_momentum must be below 1, not 1"),
    "amp in float16": (["-p", "amp=float16"], "amp must be one of false, true, bfloat16, not 'float16'"),
    "dispatch": (["--progressive-dispatch", "perhaps"], "progressive_dispatch must be true or false, not 'perhaps'"),
    "threshold": (["--divergence-threshold", "-1"], "divergence_threshold must be at least 0, not -1"),
    "threshold that is none": (["--divergence-threshold", "nan"], "divergence_threshold must be a finite number"),
    "accumulation": (["--grad-accumulation", "0"], "grad_accumulation must be at least 1, not 0"),
    "no steps": (["--max-steps", "0"], "max_steps must be at least 1, not 0"),
    "no time": (["--max-time-s", "0"], "max_time_s must be above 0, not 0"),
    "anchors": (["--anchor", "9", "--max-anchor", "8"], "max_anchor (8) must be at least anchor (9)"),
    "twice": (["--amp", "-p", "amp=true"], "amp is given twice"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_what_is_refused_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", *TWO, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("flodl: error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
