"""What the documentation of the command says is so."""

from __future__ import annotations

import inspect
import json
import re

import pytest

from flodl_cli.main import main
from flodl_cli.run_fields import BRIEF
from flodl_cli.simulate import simulate
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


# flodl simulate

FORECASTS = (REPOSITORY / "docs" / "simulate.md").read_text()
EXAMPLES = re.findall(r"^ {4}flodl (simulate [^\n]+)\n\n```text\n(.*?)```", FORECASTS, re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def without_numbers(text: str) -> list[str]:
    return [" ".join(NUMBER.sub("#", line).split()) for line in text.splitlines()]


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def of_virtual_time(text: str) -> str:
    return re.sub(r"^simulated in .*$", "", text, flags=re.MULTILINE)


def test_there_are_examples_of_forecasts() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize(("command", "printed"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_a_forecast_in_the_docs_is_what_the_command_prints(
    command: str, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(command.split()) == 0
    documented, found = of_virtual_time(printed), of_virtual_time(capsys.readouterr().out)
    assert without_numbers(found) == without_numbers(documented)
    # the engine may be improved a little without a page being written anew
    assert numbers(found) == pytest.approx(numbers(documented), rel=0.05, abs=1.0)


def test_times_with_other_cards_in_the_docs_are_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    rows = re.findall(r"^\| `([\d.,x]+)` \| (.+?) \| (.+?) \|", FORECASTS, re.MULTILINE)
    assert len(rows) == 5
    for speeds, wall, lockstep in rows:
        assert main(["simulate", "--speeds", speeds, "--jitter", "0.05"]) == 0
        out = capsys.readouterr().out
        found = [re.findall(pattern, out, re.MULTILINE)[0] for pattern in (r"^time +(.+?),", r"^in lockstep +(.+?): ")]
        assert numbers(" ".join(found)) == pytest.approx(numbers(f"{wall} {lockstep}"), rel=0.03, abs=0.5)


def test_every_option_of_a_forecast_is_in_the_docs() -> None:
    names = [name.replace("_", "-") for name in inspect.signature(simulate).parameters if name != "as_json"]
    assert [name for name in [*names, "json"] if f"`--{name}" not in FORECASTS] == []


def test_every_key_of_a_forecast_is_in_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--speeds", "1", "--samples", "64", "--epochs", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [key for key in [*result, *result["ranks"][0]] if f"`{key}`" not in FORECASTS] == []
