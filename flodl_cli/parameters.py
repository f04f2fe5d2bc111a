"""From options and ``-p key=value`` to a run's parameters."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from flodl_cli.failures import CliError
from flodl_store.params import RunParams
from flodl_store.params_errors import unknown_parameter

MOST_SHOWN = 60
"""Characters of a bad value that a message repeats."""

# A bare word for one of these is split at its commas: -p devices=cpu,cpu@2.5
LIST_PARAMETERS = frozenset({"devices", "tags"})


def build_params(options: Mapping[str, Any], assignments: Sequence[str]) -> RunParams:
    """A run's parameters.

    Args:
        options: Parameter to value for the options of their own; None where an option was not given.
        assignments: What followed each ``-p``.

    Raises:
        CliError: An assignment is malformed, or a parameter is given twice.
        pydantic.ValidationError: A value is refused.
    """
    values = {name: value for name, value in options.items() if value is not None}
    for assignment in assignments:
        name, value = parse_assignment(assignment)
        if name in values:
            raise CliError(f"{name} is given twice")
        values[name] = value
    return RunParams.model_validate(values)


def parse_assignment(text: str) -> tuple[str, Any]:
    """``key=value`` as name and value: JSON where it is, else the bare word.

    Raises:
        CliError: There is no ``=``, no such parameter, or the value starts like JSON and is none.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise CliError(f"-p wants key=value, not {text!r}")
    name = name.strip()
    if name not in RunParams.model_fields:
        raise CliError(unknown_parameter(name))
    return name, _parse_value(name, value.strip())


def split_list(text: str) -> list[str]:
    """The parts between commas, without the space around them."""
    return [part.strip() for part in text.split(",")]


def _parse_value(name: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        if text.startswith(("[", "{", '"')):
            raise CliError(f"the value of {name} is neither JSON nor a bare word: {_shown(text)}") from None
    except RecursionError:
        raise CliError(f"the value of {name} is nested too deeply: {_shown(text)}") from None
    return split_list(text) if name in LIST_PARAMETERS else text


def _shown(text: str) -> str:
    """The text as it is safe to print, on one line and not for ever."""
    return repr(text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "...")


def _refuse_constant(_text: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no JSON")
