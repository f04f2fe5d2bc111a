"""From a recipe's name to the recipe."""

import importlib
import sys
import traceback
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from flows.errors import RecipeError
from flows.recipes.recipe import Recipe

GROUP = "flodl.recipes"


def resolve_recipe(name: str, *, folder: Path) -> Recipe:
    """The recipe called ``name``: a registered short name, or ``package.module:attribute``.

    Args:
        name: What to look for.
        folder: Where flodl was started. For ``package.module:attribute`` it is appended to ``sys.path``, last, so
            that nothing in it hides an installed package.

    Raises:
        RecipeError: There is no such recipe, or its code cannot be imported.
    """
    if ":" in name:
        _append_to_path(folder)
        return _load(EntryPoint(name=name, value=_checked_reference(name), group=GROUP))
    registered = _registered()
    if name not in registered:
        raise RecipeError(_unknown(name, list(registered)))
    return _load(registered[name])


def list_recipes() -> list[tuple[str, Recipe]]:
    """Every registered recipe with its short name, sorted by name.

    Raises:
        RecipeError: One of them cannot be imported.
    """
    return [(name, _load(entry)) for name, entry in sorted(_registered().items())]


def _registered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _unknown(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown recipe {name!r}: {hint}there are {', '.join(sorted(known))}, and package.module:attribute"


def _checked_reference(name: str) -> str:
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise RecipeError(f"a recipe must look like digits or package.module:attribute, not {name!r}")
    return name


def _append_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _load(entry: EntryPoint) -> Recipe:
    try:
        module = importlib.import_module(entry.module)
    except (Exception, SystemExit) as error:  # whatever a stranger's module raises, the caller is told where
        raise RecipeError(_import_failed(entry, error)) from error
    found: object = module
    for part in entry.attr.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Recipe):
        kind = "is not there" if found is None else f"is a {type(found).__name__}"
        raise RecipeError(f"recipe {entry.value}: {entry.attr} must be a flows.recipes.Recipe and {kind}")
    return found


def _import_failed(entry: EntryPoint, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and _is_part_of(error.name, entry.module):
        return f"recipe {entry.value}: there is no module {error.name!r} here or in the installed packages"
    file, line = _origin(error)
    return f"recipe {entry.value}: {entry.module} fails with {type(error).__name__}: {error} ({file}, line {line})"


def _is_part_of(missing: str | None, module: str) -> bool:
    return missing is not None and (module == missing or module.startswith(f"{missing}."))


def _origin(error: BaseException) -> tuple[str, int]:
    if isinstance(error, SyntaxError):
        return error.filename or "?", error.lineno or 0
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return frame.filename, frame.lineno or 0
