"""From ``RunParams`` to a flow's flat parameters, so that there is one definition of what a run may be asked to do."""

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

from pydantic import StringConstraints
from pydantic.fields import FieldInfo

from flodl_store.params import RunParams

F = TypeVar("F", bound=Callable[..., Any])

RunId = Annotated[str, StringConstraints(pattern=r"^[0-9A-HJKMNP-TV-Z]{26}$")]
_RUN_ID = inspect.Parameter("run_id", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=RunId | None)
_RUN_ID_SAYS = "Name of a run that is pending, where whoever starts the flow has made one; default: a new run"


def takes_run_params(function: F) -> F:
    """Give a function of ``**values`` the fields of :class:`RunParams` as its parameters, and ``run_id``.

    Types carry the fields' ranges; the docstring gets a section that describes each, which Prefect's form shows.
    """
    parameters = [*(_parameter(name, field) for name, field in RunParams.model_fields.items()), _RUN_ID]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect.signature
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Args:", *_descriptions()])
    return function


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.is_required() else field.get_default()
    annotation = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _descriptions() -> Iterator[str]:
    for name, field in RunParams.model_fields.items():
        yield f"    {name}: {field.description}."
    yield f"    run_id: {_RUN_ID_SAYS}."
