"""What the tests of the command share: a home of their own, a folder to start in, recipes written on the spot."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.data_paths import REPOSITORY

WriteRecipe = Callable[[str], str]

PREAMBLE = """
import threading
from dataclasses import replace
import torch
from flows.recipes import Recipe
from flows.recipes.digits import recipe as digits

lock, state = threading.Lock(), {"calls": 0}

def loss(model, batch):
    with lock:
        state["calls"] += 1
        call = state["calls"]
    return step(call, model, batch)
"""


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("FLODL_HOME", str(folder))
    monkeypatch.delenv("FLODL_DATABASE_URL", raising=False)
    return folder


@pytest.fixture
def write_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[WriteRecipe]:
    """Writes a module into the folder where the test then starts flodl, and returns ``module:recipe``.

    The source defines ``recipe``; it may use ``digits`` and ``loss``, which calls its ``step(call, model, batch)``.
    """
    folder = tmp_path / "started"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    path, modules = list(sys.path), set(sys.modules)

    def write(source: str) -> str:
        (folder / "written_recipe.py").write_text(PREAMBLE + source)
        return "written_recipe:recipe"

    yield write
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("written_recipe"):
            del sys.modules[name]
