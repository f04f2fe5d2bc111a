"""Numbers that are not finite survive JSON as strings."""

from __future__ import annotations

import json
import math

import pytest

from flodl_store.plain_json import dump_json


def test_nonfinite_numbers_are_strings_at_any_depth() -> None:
    value = {"a": math.nan, "b": [math.inf, (-math.inf, 1.5)], "c": {"d": math.nan}, "e": None}
    assert json.loads(dump_json(value)) == {
        "a": "NaN",
        "b": ["Infinity", ["-Infinity", 1.5]],
        "c": {"d": "NaN"},
        "e": None,
    }


def test_what_json_has_no_form_for_is_refused() -> None:
    with pytest.raises(TypeError):
        dump_json(object())
