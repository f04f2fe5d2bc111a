"""What the model was called with on the first batch, caught by a hook: shapes and kinds, never the data."""

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor without its values.

    Attributes:
        shape: Its size by dimension.
        dtype: Its type.
        device: Where it was.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One call of a model.

    Attributes:
        args: Positional arguments, each tensor replaced by its :class:`TensorSpec`.
        kwargs: The same by name.
        training: Whether each of ``model.modules()`` was in training mode, in their order.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    training: tuple[bool, ...]


class FirstForward:
    """Waits for a model's first call. Written once by a worker's thread, read by any."""

    def __init__(self) -> None:
        self._settled = threading.Event()
        self._lock = threading.Lock()
        self._call: ModelCall | None = None

    def watch(self, model: nn.Module) -> None:
        """Catch the next call of ``model``; the hook removes itself then."""

        def catch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            handle.remove()
            self._settle(_describe(module, args, kwargs))

        handle = model.register_forward_pre_hook(catch, with_kwargs=True)

    def give_up(self) -> None:
        """Say that no call will come. Does nothing where one has."""
        self._settle(None)

    @property
    def is_settled(self) -> bool:
        """Whether ``wait`` returns at once."""
        return self._settled.is_set()

    def wait(self, timeout_s: float | None = None) -> ModelCall | None:
        """The call once there is one; None where there will be none, or none within ``timeout_s`` seconds."""
        self._settled.wait(timeout_s)
        return self._call

    def _settle(self, call: ModelCall | None) -> None:
        with self._lock:
            if not self._settled.is_set():
                self._call = call
                self._settled.set()


def _describe(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModelCall:
    spec_args, spec_kwargs = pytree.tree_map_only(Tensor, _spec, (args, kwargs))
    return ModelCall(args=spec_args, kwargs=spec_kwargs, training=tuple(part.training for part in module.modules()))


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(shape=tuple(tensor.shape), dtype=tensor.dtype, device=tensor.device)
