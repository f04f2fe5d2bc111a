"""Recipes are found by short name or by package.module:attribute, and a miss says what there is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.errors import RecipeError
from flows.recipes import list_recipes, resolve_recipe
from flows.recipes.digits import recipe as digits


@pytest.fixture(autouse=True)
def import_state_is_put_back() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_short_name_is_found(tmp_path: Path) -> None:
    assert resolve_recipe("digits", folder=tmp_path) is digits


def test_registered_recipes_are_listed_by_name() -> None:
    names = [name for name, _ in list_recipes()]
    assert names == sorted(names)
    assert {"digits", "mnist-logistic", "mnist-mlp", "mnist-lenet"} <= set(names)


def test_a_short_name_is_the_recipes_own() -> None:
    assert [name for name, recipe in list_recipes() if recipe.name != name] == []


def test_a_module_in_the_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "my_recipes.py").write_text(
        "from dataclasses import replace\nfrom flows.recipes.digits import recipe\n"
        "class Mine:\n    small = replace(recipe, name='small')\n"
    )
    assert resolve_recipe("my_recipes:Mine.small", folder=tmp_path).name == "small"


def test_the_folder_comes_last_so_that_it_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "__init__.py").write_text("raise RuntimeError('shadowed')")
    assert resolve_recipe("flows.recipes.digits:recipe", folder=tmp_path) is digits
    assert sys.path[-1] == str(tmp_path)


def test_a_short_name_adds_no_folder(tmp_path: Path) -> None:
    resolve_recipe("digits", folder=tmp_path)
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digit", r"unknown recipe 'digit': did you mean digits\? there are digits, mnist-lenet, .*mnist-mlp"),
        ("zzz", r"unknown recipe 'zzz': there are digits, "),
        ("nowhere_at_all:recipe", "there is no module 'nowhere_at_all' here or in the installed packages"),
        ("flows.nowhere:recipe", r"there is no module 'flows\.nowhere' here"),
        ("flows.recipes.digits:nope", "nope must be a flows.recipes.Recipe and is not there"),
        ("flows.recipes.digits:EVAL_EVERY", "EVAL_EVERY must be a flows.recipes.Recipe and is an? int"),
        ("not a module:recipe", "must look like digits or package.module:attribute"),
        ("../x:recipe", "must look like digits or package.module:attribute"),
    ],
)
def test_a_miss_says_what_there_is(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        resolve_recipe(name, folder=tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\nraise KeyError('boom')\n", r"broken fails with KeyError: 'boom' \(.*broken\.py, line 2\)"),
        ("def f(:\n", r"broken fails with SyntaxError: .*broken\.py, line 1\)"),
        ("import nothing_like_it\n", r"broken fails with ModuleNotFoundError: .*nothing_like_it.*line 1\)"),
    ],
)
def test_a_module_that_fails_is_named_with_the_line(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(RecipeError, match=message):
        resolve_recipe("broken:recipe", folder=tmp_path)
