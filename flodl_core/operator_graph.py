"""A model as a graph of operators: plain values, as one call of the model made them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from flodl_core.first_forward import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCall:
    """A module at work.

    Attributes:
        path: Its name in the model, with dots; empty for the model itself.
        kind: Name of its class.
        number: How many of its calls came before this one.
        is_library: Whether the class is one of torch's own.
    """

    path: str
    kind: str
    number: int
    is_library: bool


@dataclass(frozen=True, slots=True)
class ValueRef:
    """A tensor of the graph: output ``index`` of operator ``source``, or input ``index`` where ``source`` is -1."""

    source: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A tensor on its way into an operator, or out of the model."""

    ref: ValueRef
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator.

    Attributes:
        name: Such as ``conv2d``.
        modules: The modules at work, the model first.
        arguments: The call's, in plain values, with tensors as lists that begin with a word for their kind.
        inputs: Tensors that other operators or the model's caller made.
        params: Names of the parameters that it takes.
    """

    name: str
    modules: tuple[ModuleCall, ...]
    arguments: tuple[Any, ...]
    inputs: tuple[Edge, ...]
    params: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorGraph:
    """All operators on the way from a model's inputs to its outputs.

    Attributes:
        inputs: Shape and type of each tensor that the model was called with.
        operators: By their number in the order of execution; numbers have gaps where an operator led nowhere.
        outputs: The tensors that the model returned.
    """

    inputs: tuple[TensorSpec, ...]
    operators: Mapping[int, Operator]
    outputs: tuple[Edge, ...]


def dtype_word(dtype: torch.dtype) -> str:
    """Such as ``float32``."""
    return str(dtype).removeprefix("torch.")
