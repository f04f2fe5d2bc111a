"""What is wrong with a run's parameters, in one line that a person can act on."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flodl_store.params import RunParams

_DEVICES_HINT = 'must be a list of devices such as ["cpu", "cpu@2.5"]'
# By pydantic's kind of error; {name} are the values that pydantic names for it.
_EXPECTED = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_too_long": "must have {max_length} characters at most",
    "too_short": "must not be empty",
    "too_long": "must have {max_length} entries at most",
    "tuple_type": "must be a list",
}


def describe_errors(error: ValidationError) -> str:
    """Every fault of some refused :class:`RunParams` in one line, in the order of the fields."""
    details = error.errors(include_url=False)
    # A list whose entries are refused is reported as too short as well, since pydantic counts the good ones.
    inner = {detail["loc"][:1] for detail in details if len(detail["loc"]) > 1}
    return "; ".join(_describe(detail) for detail in details if detail["loc"] not in inner)


def _describe(detail: ErrorDetails) -> str:
    name, value = _field_name(detail["loc"]), detail["input"]
    match detail["type"]:
        case "missing":
            return f"{name} is missing"
        case "extra_forbidden":
            return unknown_parameter(name)
        case "literal_error":
            return f"{name} must be one of {_choices(detail)}, not {value!r}"
        case "string_pattern_mismatch":
            return f"{name} must look like cpu, cuda:0 or cpu@2.5, not {value!r}"
        case "tuple_type" if name == "devices":
            return f"{name} {_DEVICES_HINT}, not {value!r}"
        case kind if kind in _EXPECTED:
            return f"{name} {_EXPECTED[kind].format(**_limits(detail))}, not {value!r}"
    return f"{name}: {detail['msg']}, not {value!r}"


def unknown_parameter(name: str) -> str:
    """That there is no parameter ``name``, with the one that was probably meant or with all of them."""
    known = tuple(RunParams.model_fields)
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"unknown parameter {name!r}: {hint}"


def _field_name(location: Sequence[int | str]) -> str:
    head, *rest = location
    return str(head) + "".join(f"[{part}]" for part in rest if isinstance(part, int))


def _limits(detail: ErrorDetails) -> dict[str, str]:
    limits = detail.get("ctx", {})
    return {name: f"{limit:g}" if isinstance(limit, float) else str(limit) for name, limit in limits.items()}


def _choices(detail: ErrorDetails) -> str:
    expected: Any = detail.get("ctx", {}).get("expected", "")
    words = str(expected).replace("'", "").replace(" or ", ", ")
    return words.replace("False", "false").replace("True", "true")  # as they are written in JSON
