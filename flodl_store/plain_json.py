"""JSON that every parser reads: numbers that are not finite become strings."""

import json
import math
from collections.abc import Mapping
from typing import Any


def nonfinite_as_text(value: Any) -> Any:
    """``value`` with ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` in place of such floats, at any depth.

    Mappings become dicts, lists and tuples lists; everything else is left as it is.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: nonfinite_as_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nonfinite_as_text(item) for item in value]
    return value


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON text in which numbers that are not finite are strings.

    Raises:
        TypeError: ``value`` holds something that JSON has no form for.
    """
    return json.dumps(nonfinite_as_text(value), allow_nan=False, ensure_ascii=False, indent=indent)
