"""From ``RunParams`` to options of a command, so that each parameter of a run has an option of its name."""

import inspect
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from flodl_cli.parameters import LIST_PARAMETERS
from flodl_store.params import RunParams

F = TypeVar("F", bound=Callable[..., Any])

# Shown first and as they are; all others are grouped below.
FIRST = ("devices", "policy", "backend", "epochs", "batch_size", "seed")
_OTHERS = "Other parameters"


def takes_params_as_options(function: F) -> F:
    """Give a command of ``**options`` an option for each field of :class:`RunParams` that it does not name itself.

    An option that is not given is None, so that the field's default holds. Ranges are checked by the model.
    """
    own = [
        parameter
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    fields = RunParams.model_fields
    names = [*FIRST, *(name for name in fields if name not in FIRST)]
    ours = [_parameter(name, fields[name]) for name in names if name not in {parameter.name for parameter in own}]
    required = [parameter for parameter in own if parameter.default is inspect.Parameter.empty]
    others = [parameter for parameter in own if parameter.default is not inspect.Parameter.empty]
    signature = inspect.Signature([*required, *ours, *others])
    function.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect.signature
    return function


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    kind = _kind(field)
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        help=_help(name, field),
        metavar="true|false" if bool in _alternatives(field) and kind is str else None,
        show_default=False,
        rich_help_panel=None if name in FIRST else _OTHERS,
    )
    annotation: Any = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)


def _kind(field: FieldInfo) -> type:
    """What the option is: a number, a switch where the parameter is off by itself, or text for the model to read."""
    if field.get_default() is False:
        return bool
    return next((kind for kind in (int, float) if kind in _alternatives(field)), str)


def _help(name: str, field: FieldInfo) -> str:
    text = f"{field.description}{', with commas between' if name in LIST_PARAMETERS else ''}."
    notes = [*_choices(field), *_range(field)]
    default = field.get_default()
    if default is not None and default is not False and default != ():
        notes.append(f"default {default}")
    return f"{text} ({'; '.join(notes)})" if notes else text


def _choices(field: FieldInfo) -> Iterator[str]:
    for kind in _alternatives(field):
        if get_origin(kind) is Literal and field.get_default() is not False:
            yield ", ".join(get_args(kind))


def _range(field: FieldInfo) -> Iterator[str]:
    least = [limit.ge for limit in field.metadata if isinstance(limit, Ge)]
    most = [limit.le for limit in field.metadata if isinstance(limit, Le)]
    if least and most:
        yield f"{least[0]} to {most[0]}"


def _alternatives(field: FieldInfo) -> tuple[Any, ...]:
    annotation: Any = field.annotation
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
