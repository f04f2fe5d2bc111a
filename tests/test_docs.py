"""What the documentation shows is true: its Python runs, its commands parse, its links and files are there.

All Python blocks of a page run in order, as one program, but for those after a line ``<!-- not run: why -->``.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
import typer

from flodl_cli.main import app, main
from flodl_core import ApplyPolicy, AverageBackend, DdpBuilder, messages
from flodl_core.efficiency import capacity_efficiency
from flodl_core.settings import Settings
from tests.data_paths import REPOSITORY

DOCS = sorted((REPOSITORY / "docs").glob("*.md"))
PAGES = [REPOSITORY / "README.md", *DOCS]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


# Python


def program(page: Path) -> str:
    """The page with everything blanked that is not to be run, so that a traceback has the page's line numbers."""
    lines: list[str] = []
    is_inside, is_excluded = False, False
    for line in page.read_text().splitlines():
        if not is_inside and line.startswith("<!-- not run:"):
            is_excluded = True
        is_fence = line.startswith("```")
        lines.append(line if is_inside and not is_fence and not is_excluded else "")
        if is_fence and is_inside:
            is_inside, is_excluded = False, False
        elif line == "```python":
            is_inside = True
    return "\n".join(lines)


@pytest.mark.parametrize("page", [page for page in DOCS if program(page).strip()], ids=lambda page: page.name)
def test_its_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / f"{page.stem}_page.py"
    script.write_text(program(page))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")


def test_a_program_keeps_what_is_to_run_in_its_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "a\n```python\nx = 1\n```\n<!-- not run: b -->\n```python\ny\n```\n```python\nz = 2\n```\n```toml\nt\n```\n"
    )
    assert program(page).split("\n") == ["", "", "x = 1", "", "", "", "", "", "", "z = 2", "", "", "", ""]


# Commands


def commands(page: Path) -> Iterator[tuple[str, bool]]:
    """Command lines of ``flodl``, and whether one may lack arguments because it only names the command."""
    text = re.sub(r"\s*\\\n\s*", " ", page.read_text())
    for line in re.findall(r"^ {4}(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(flodl .*)$", text, re.MULTILINE):
        yield re.split(r" {2,}| \| ", line)[0], False
    for line in re.findall(r"`(?:\.venv/bin/)?(flodl [^`]*)`", text):
        yield line.replace(" ...", ""), True


def words(line: str) -> list[str]:
    """The words after ``flodl``: of a synopsis also those that may be left out."""
    return shlex.split(line.replace("[options]", "").replace("[", "").replace("]", ""), comments=True)[1:]


def parse_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every command do nothing once its options are read; ``train`` still checks its parameters."""

    def idle(callback: Callable[..., object]) -> Callable[..., object]:
        return functools.wraps(callback)(lambda **_: None)

    def silence(group: typer.Typer) -> None:
        for command in group.registered_commands:
            if command.callback is not None and command.callback.__name__ != "train":
                monkeypatch.setattr(command, "callback", idle(command.callback))
        for inner in group.registered_groups:
            if inner.typer_instance is not None:
                silence(inner.typer_instance)

    silence(app)
    monkeypatch.setattr("flodl_cli.run_training.run_training", lambda *_, **__: 0)


@each_page
def test_its_commands_parse(page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    parse_only(monkeypatch)
    refused = []
    for line, may_lack_arguments in commands(page):
        code = main(words(line))
        error = capsys.readouterr().err
        is_name = may_lack_arguments and re.search("Missing (argument|option)", error)
        if code != 0 and not is_name:
            refused.append((line, error))
    assert refused == []


@pytest.mark.parametrize(
    "line", ["flodl fly", "flodl train", "flodl train digits --speed 3", "flodl train digits -p policy=never"]
)
def test_a_wrong_command_does_not_parse(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parse_only(monkeypatch)
    assert main(words(line)) == 2


# Links, files, names


def anchors(page: Path) -> set[str]:
    """The names under which a page's headings can be linked to."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_its_links_lead_somewhere(page: Path) -> None:
    lost = []
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


@each_page
def test_the_files_that_it_names_exist(page: Path) -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[\w.-]+\.(?:py|md|json|toml))(?:::(\w+))?`", page.read_text())
    assert [path for path, _ in named if not (REPOSITORY / path).is_file()] == []
    assert [name for path, name in named if name and f"def {name}(" not in (REPOSITORY / path).read_text()] == []


def settings_in_the_docs() -> dict[str, str]:
    """Default as the docs have it, by method of the builder."""
    text = (REPOSITORY / "docs" / "builder.md").read_text()
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", text, re.MULTILINE))


def test_every_setting_of_a_run_is_in_the_docs() -> None:
    methods = {name for name in vars(DdpBuilder) if not name.startswith("_")} - {"run"}
    assert set(settings_in_the_docs()) == methods


def test_defaults_of_settings_are_those_in_the_docs() -> None:
    documented = settings_in_the_docs()
    defaults = {field.name: field.default for field in dataclasses.fields(Settings) if field.name in documented}
    told = {name: str(default) for name, default in defaults.items() if default not in (None, dataclasses.MISSING)}
    assert len(told) > 5
    assert {name: documented[name] for name in told} == told


def test_every_policy_and_backend_is_explained() -> None:
    text = (REPOSITORY / "docs" / "engine.md").read_text()
    assert [word for word in [*ApplyPolicy, *AverageBackend] if f"`{word}`" not in text] == []


def test_the_queues_in_the_diagram_hold_the_messages_of_the_engine() -> None:
    text = (REPOSITORY / "docs" / "engine.md").read_text()
    of_coordinator, of_worker = (
        set(re.findall(r"\w+", line.replace("<br/>", " "))) for line in re.findall(r'\("queue of .*?<br/>(.*)"\)', text)
    )
    of_trouble = {"AveragingFailed", "CallbackFailed"}  # left out of the picture
    assert of_coordinator | of_trouble == {kind.__name__ for kind in get_args(messages.ToCoordinator)}
    assert of_worker == {kind.__name__ for kind in get_args(messages.ToWorker)}


def test_capacity_efficiency_is_defined_in_the_words_of_the_code() -> None:
    text = " ".join((REPOSITORY / "docs" / "engine.md").read_text().split()).lower()
    definition = " ".join((capacity_efficiency.__doc__ or "").partition("Args:")[0].split()).lower()
    clauses = [clause.strip(" .") for clause in re.split(r"[.:] ", definition)]
    assert len(clauses) > 5
    assert [clause for clause in clauses if clause not in text] == []
