"""What a stranger's recipe may do to ``flodl train``, and what the caller is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flodl_cli.main import main
from flodl_core import TrainedState
from tests.flodl_cli.conftest import WriteRecipe

ONE_EPOCH = ["--devices", "cpu,cpu", "--epochs", "1"]


def test_recipe_module_that_exits_is_refused(write_recipe: WriteRecipe, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", write_recipe("import sys\nsys.exit()\n"), *ONE_EPOCH]) == 2
    assert "written_recipe fails with SystemExit" in capsys.readouterr().err


def test_dataset_that_exits_fails_the_run(write_recipe: WriteRecipe, capsys: pytest.CaptureFixture[str]) -> None:
    source = "import sys\nrecipe = replace(digits, dataset=lambda: sys.exit(0))\n"
    assert main(["train", write_recipe(source), *ONE_EPOCH]) == 1
    assert "called sys.exit" in capsys.readouterr().err


@pytest.mark.parametrize("evaluate", ["lambda model: None", "lambda model: {'accuracy': 'high'}"])
def test_evaluation_that_fails_does_not_lose_the_state(
    evaluate: str, write_recipe: WriteRecipe, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write_recipe(f"recipe = replace(digits, evaluate={evaluate})\n")
    assert main(["train", name, *ONE_EPOCH, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["status"] == "failed"
    assert TrainedState.load(Path(result["state_path"])).params


def test_figures_may_be_tensors_and_have_any_name(
    write_recipe: WriteRecipe, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write_recipe("recipe = replace(digits, evaluate=lambda model: {'top[/b]': torch.tensor(0.5)})\n")
    assert main(["train", name, *ONE_EPOCH, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["eval"] == {"top[/b]": 0.5}
    assert main(["train", name, *ONE_EPOCH]) == 0
    assert "evaluation top[/b]" in capsys.readouterr().out
