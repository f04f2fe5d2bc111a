"""Numbers that are not finite, in columns that hold none: SQLite stores NaN as NULL, and flodl does so everywhere."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from flodl_store.plain_json import nonfinite_as_text

_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def set_aside(values: dict[str, Any], names: Iterable[str]) -> None:
    """Put None in place of what is not finite among ``names``, and say in ``values["nonfinite"]`` what it was.

    That entry is always set: to a dict of column to text, or to None where every number is finite.
    """
    found: dict[str, str] | None = None
    for name in names:
        value = values[name]
        if value is not None and not math.isfinite(value):
            found = found or {}
            found[name] = nonfinite_as_text(float(value))
            values[name] = None
    values["nonfinite"] = found


def put_back(values: dict[str, Any]) -> dict[str, Any]:
    """Undo ``set_aside`` on a row that was read: ``nonfinite`` is taken out, its columns get their numbers."""
    found = values.pop("nonfinite")
    for name, text in (found or {}).items():
        values[name] = _NUMBERS[text]
    return values


def as_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values``, as JSON brought them, with ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` as numbers again."""
    return {name: _NUMBERS.get(value, value) if isinstance(value, str) else value for name, value in values.items()}
