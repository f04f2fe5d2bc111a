"""What the documentation of the command says is so."""

from __future__ import annotations

import json
import re

import pytest

from flodl_cli.main import main
from flodl_cli.run_fields import BRIEF
from flodl_store.params import RunParams
from tests.data_paths import REPOSITORY
from tests.flodl_cli.conftest import WriteRecipe


def test_the_recipe_in_the_docs_trains(write_recipe: WriteRecipe, capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "recipes.md").read_text(), re.DOTALL)
    assert main(["train", write_recipe(source), "--devices", "cpu,cpu@2.5", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["status"], result["num_samples"]) == ("completed", 3 * 4096)
    assert result["eval"]["loss"] < 1.0


def test_every_parameter_is_in_the_docs() -> None:
    text = (REPOSITORY / "docs" / "cli.md").read_text()
    assert [name for name in RunParams.model_fields if f"`{name}`" not in text] == []


def test_every_key_of_a_run_in_a_list_is_in_the_docs() -> None:
    text = (REPOSITORY / "docs" / "cli.md").read_text()
    assert [name for name in BRIEF if f"`{name}`" not in text] == []
