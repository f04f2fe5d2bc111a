"""From a model and one call of it to its graph of operators.

The model is copied and called with *fake* tensors, which have shapes and no values: no memory is taken, nothing is
computed, no random number is drawn. Operators are seen as the caller's code makes them (``conv2d``, ``relu``), through
a mode that holds for the calling thread alone. ``torch.export`` and ``torch.fx`` patch ``nn.Module`` for the whole
process while they trace, and workers are training in it.
"""

import copy
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from flodl_core.first_forward import ModelCall, TensorSpec
from flodl_core.operator_graph import Edge, ModuleCall, Operator, OperatorGraph, ValueRef, dtype_word


class TraceError(Exception):
    """A model cannot be traced; the message says why."""


def trace_operators(model: nn.Module, call: ModelCall) -> OperatorGraph:
    """The operators of one call of ``model``.

    Args:
        model: Copied, and only read.
        call: What it was called with.

    Raises:
        TraceError: Its code asks for a value of a tensor, cannot be copied, or makes its output out of sight.
    """
    try:
        with _torch_silent():
            return _trace(model, call)
    except TraceError:
        raise
    except Exception as error:  # whatever the user's forward raises when its tensors have no values
        raise TraceError(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}") from error


def _trace(model: nn.Module, call: ModelCall) -> OperatorGraph:
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    twin = _fake_copy(model, fake_mode)
    for part, training in zip(twin.modules(), call.training, strict=True):
        part.training = training
    recorder = _Recorder(twin)
    with fake_mode:
        args, kwargs = pytree.tree_map_only(TensorSpec, recorder.add_input, (call.args, call.kwargs))
        with recorder, torch.enable_grad():
            result = twin(*args, **kwargs)
    outputs = [recorder.edge(leaf) for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    if not outputs or any(edge is None for edge in outputs):
        raise TraceError("an output is made where no operator of torch is seen")
    return recorder.graph(tuple(edge for edge in outputs if edge is not None))


def _fake_copy(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """A copy whose parameters and buffers take no memory."""
    tensors = [*model.parameters(), *model.buffers()]
    # deepcopy takes what is in its memo for what it has copied already
    memo: dict[int, Any] = {id(tensor): mode.from_tensor(tensor) for tensor in tensors}
    return copy.deepcopy(model, memo)


class _Recorder(TorchFunctionMode):
    """Notes every operator that is called on its thread while it is entered."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._inputs: list[TensorSpec] = []
        self._operators: list[Operator] = []
        self._refs: dict[int, ValueRef] = {}
        self._kept: list[Tensor] = []  # an id is unique only while its tensor lives
        self._stack: list[ModuleCall] = []
        self._num_calls: dict[str, int] = {}
        self._names = {id(tensor): ("param", name) for name, tensor in model.named_parameters()}
        self._names |= {id(tensor): ("buffer", name) for name, tensor in model.named_buffers()}
        for path, module in model.named_modules():
            self._watch(path, module)

    def _watch(self, path: str, module: nn.Module) -> None:
        kind, is_library = type(module).__name__, type(module).__module__.startswith("torch.nn.")

        def enter(_module: nn.Module, _args: Any) -> None:
            number = self._num_calls.get(path, 0)
            self._num_calls[path] = number + 1
            self._stack.append(ModuleCall(path=path, kind=kind, number=number, is_library=is_library))

        def leave(_module: nn.Module, _args: Any, _result: Any) -> None:
            self._stack.pop()

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)

    def add_input(self, spec: TensorSpec) -> Tensor:
        """A fake tensor for an input of the model."""
        tensor = torch.empty(spec.shape, dtype=spec.dtype, device=spec.device)
        self._keep(tensor, ValueRef(-1, len(self._inputs)))
        self._inputs.append(spec)
        return tensor

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func`` and note it where it makes or changes a tensor."""
        kwargs = kwargs or {}
        name = _name_of(func)
        before = self._note(name, args, kwargs)
        result = func(*args, **kwargs)
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        if name == "setitem":
            made = [args[0]]
        if made:
            for index, tensor in enumerate(made):
                self._keep(tensor, ValueRef(len(self._operators), index))
            self._operators.append(before)
        return result

    def _note(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operator:
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        edges = [self.edge(tensor) for tensor in tensors if id(tensor) not in self._names]
        named = [self._names[id(tensor)] for tensor in tensors if id(tensor) in self._names]
        return Operator(
            name=name,
            modules=tuple(self._stack),
            arguments=tuple(self._plain(value) for value in (*args, *sorted(kwargs.items()))),
            inputs=tuple(edge for edge in edges if edge is not None),
            params=tuple(param for kind, param in named if kind == "param"),
        )

    def edge(self, tensor: Tensor) -> Edge | None:
        """The tensor as the graph knows it; None where it was made out of sight."""
        ref = self._refs.get(id(tensor))
        return None if ref is None else Edge(ref=ref, shape=tuple(tensor.shape), dtype=dtype_word(tensor.dtype))

    def graph(self, outputs: tuple[Edge, ...]) -> OperatorGraph:
        """What leads to ``outputs``."""
        wanted: set[int] = set()
        todo = [edge.ref.source for edge in outputs]
        while todo:
            number = todo.pop()
            if number >= 0 and number not in wanted:
                wanted.add(number)
                todo.extend(edge.ref.source for edge in self._operators[number].inputs)
        operators = {number: self._operators[number] for number in sorted(wanted)}
        return OperatorGraph(inputs=tuple(self._inputs), operators=operators, outputs=outputs)

    def _keep(self, tensor: Tensor, ref: ValueRef) -> None:
        self._kept.append(tensor)
        self._refs[id(tensor)] = ref

    def _plain(self, value: Any) -> Any:
        """``value`` in words that are the same in every process: no address, no device."""
        if isinstance(value, Tensor):
            return self._plain_tensor(value)
        if isinstance(value, bool | int | str) or value is None:
            return value
        if isinstance(value, float | complex):
            return repr(value)
        if isinstance(value, torch.dtype):
            return dtype_word(value)
        if isinstance(value, tuple | list):
            return [self._plain(item) for item in value]
        if isinstance(value, dict):
            return [[str(key), self._plain(item)] for key, item in value.items()]
        if isinstance(value, slice):
            return ["slice", *(self._plain(part) for part in (value.start, value.stop, value.step))]
        return ["object", type(value).__name__]

    def _plain_tensor(self, tensor: Tensor) -> list[Any]:
        if id(tensor) in self._names:
            return list(self._names[id(tensor)])
        ref = self._refs.get(id(tensor))
        if ref is not None:
            return ["value", ref.source, ref.index]
        return ["constant", list(tensor.shape), dtype_word(tensor.dtype)]


def _name_of(func: Callable[..., Any]) -> str:
    name: str = getattr(func, "__name__", type(func).__name__)
    if name == "__get__":  # a property, such as Tensor.T
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    return name.strip("_")


@contextmanager
def _torch_silent() -> Iterator[None]:
    """Keep torch from printing, on this thread, a traceback of what is caught and said in one line."""
    logger, thread = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def passes(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(passes)
    try:
        yield
    finally:
        logger.removeFilter(passes)
