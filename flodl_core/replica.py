"""A model as one worker holds it: its trainable tensors are views of one flat buffer per dtype and device.

Averaging a model then costs a few large operations instead of several small ones per parameter.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flodl_core.errors import ModelError

ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """Flat tensors of one replica, in an order that is the same on all ranks.

    Attributes:
        params: Trainable parameters (or their gradients), one 1-D tensor per dtype; of complex ones, the pairs of reals
            that they are in memory.
        floating: Floating and complex buffers, one 1-D tensor per dtype.
        integer: Integer and boolean buffers as one 1-D int64 tensor.
        has_grad: For gradients: which parameters have one, in the order of ``Replica.trainable``.
    """

    params: tuple[Tensor, ...]
    floating: tuple[Tensor, ...]
    integer: Tensor
    has_grad: tuple[bool, ...] = ()

    def clone(self) -> "ReplicaState":
        """A copy on the CPU that nobody else writes to."""

        def copies(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
            return tuple(tensor.detach().to("cpu", copy=True) for tensor in tensors)

        return ReplicaState(
            params=copies(self.params),
            floating=copies(self.floating),
            integer=self.integer.to("cpu", copy=True),
            has_grad=self.has_grad,
        )

    def copy_from(self, other: "ReplicaState") -> None:
        """Overwrite every tensor with the other state's, converting dtype and device."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine.copy_(theirs)

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, in a fixed order."""
        yield from self.params
        yield from self.floating
        yield self.integer

    def is_finite(self) -> bool:
        """Whether all parameters are finite."""
        return all(_is_finite(tensor) for tensor in self.params)


def _is_finite(tensor: Tensor) -> bool:
    # a sum is one cheap pass and shows NaN and infinity; only when it is not finite may it have overflowed
    if bool(torch.isfinite(tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32)))):
        return True
    return bool(torch.isfinite(tensor).all())


def _is_dense(tensor: Tensor) -> bool:
    """Whether the tensor fills its memory without gaps or overlaps, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _memory_order(tensor: Tensor) -> tuple[int, ...]:
    """Strides as the flat buffer will keep them, of the dimensions that have more than one element."""
    kept = tensor if _is_dense(tensor) else tensor.contiguous()
    return tuple(stride for stride, size in zip(kept.stride(), kept.shape, strict=True) if size > 1)


@dataclass(frozen=True, slots=True)
class _Slot:
    group: int
    offset: int


class Replica:
    """Owned by one worker; ``model`` must not be moved or cast afterwards.

    Args:
        model: The model; its trainable parameters become views of flat buffers.

    Raises:
        ModelError: There is no trainable parameter, or one is lazy.
    """

    def __init__(self, model: nn.Module) -> None:
        check_trainable(model)
        self.model = model
        self.trainable: list[nn.Parameter] = [p for p in model.parameters() if p.requires_grad]
        self._slots: list[_Slot] = []
        self._flats = self._flatten()
        self.params = tuple(_as_reals(flat) for flat in self._flats)
        self._views = [p.data for p in self.trainable]
        self._grads: tuple[Tensor, ...] | None = None
        self._grad_views: list[Tensor] = []
        self.floating = tuple(
            torch.empty(sum(t.numel() for t in group), dtype=group[0].dtype, device=group[0].device)
            for group in _floating_buffers(model)
        )
        device = self.params[0].device
        num_integers = sum(buffer.numel() for buffer in _integer_buffers(model))
        self.integer = torch.empty(num_integers, dtype=torch.int64, device=device)

    def _flatten(self) -> tuple[Tensor, ...]:
        sizes: dict[tuple[torch.dtype, torch.device], int] = {}
        keys = [(p.dtype, p.device) for p in self.trainable]
        groups = list(dict.fromkeys(keys))
        for param, key in zip(self.trainable, keys, strict=True):
            if not _is_dense(param.data):
                param.data = param.data.contiguous()
            self._slots.append(_Slot(groups.index(key), sizes.get(key, 0)))
            align = ALIGN_BYTES // param.element_size()
            sizes[key] = sizes.get(key, 0) + -(-param.numel() // align) * align
        flats = tuple(torch.zeros(sizes[key], dtype=key[0], device=key[1]) for key in groups)
        for param, view in zip(self.trainable, self._views_of(flats), strict=True):
            view.copy_(param.data)
            param.data = view
        return flats

    def _views_of(self, flats: Sequence[Tensor]) -> list[Tensor]:
        return [
            flats[slot.group].as_strided(param.shape, param.stride(), slot.offset)
            for param, slot in zip(self.trainable, self._slots, strict=True)
        ]

    # State

    @torch.no_grad()
    def state(self) -> ReplicaState:
        """The live parameters and a copy of the buffers; call ``take_buffers`` after writing to it.

        Raises:
            ModelError: A parameter has been replaced since the replica was made.
        """
        for param, view in zip(self.trainable, self._views, strict=True):
            if param.data_ptr() != view.data_ptr():
                raise ModelError("a parameter was replaced during training (model.to, .half or p.data = ...)")
        self._gather_buffers()
        return ReplicaState(params=self.params, floating=self.floating, integer=self.integer)

    def _gather_buffers(self) -> None:
        # modules may bind a new tensor to a buffer's name, so they are looked up each time
        for flat, group in zip(self.floating, _floating_buffers(self.model), strict=True):
            torch.cat([buffer.reshape(-1) for buffer in group], out=flat)
        integers = _integer_buffers(self.model)
        if integers:
            torch.cat([buffer.reshape(-1).to(torch.int64) for buffer in integers], out=self.integer)

    @torch.no_grad()
    def take_buffers(self) -> None:
        """Write the flat buffers, as averaged in ``state``, back into the model."""
        for flat, group in zip(self.floating, _floating_buffers(self.model), strict=True):
            _scatter(flat, group)
        _scatter(self.integer, _integer_buffers(self.model))

    @torch.no_grad()
    def load(self, state: ReplicaState) -> None:
        """Take parameters and buffers from a state of the same layout."""
        self.state().copy_from(state)
        self.take_buffers()

    @torch.no_grad()
    def merge(self, mean: ReplicaState, snapshot: ReplicaState, *, has_trained: bool) -> None:
        """Take an average that was computed from ``snapshot`` while training went on.

        ``theta += mean - snapshot``: what was trained since the snapshot is kept. Buffers are overwritten.

        Args:
            mean: The average.
            snapshot: What this replica handed in for it.
            has_trained: Whether anything was trained since; if not, the replica becomes the mean exactly.
        """
        for theta, target, before in zip(self.params, mean.params, snapshot.params, strict=True):
            if has_trained:
                theta.add_((target - before).to(theta.device))
            else:
                theta.copy_(target)
        for flat, target in zip(self.floating, mean.floating, strict=True):
            flat.copy_(target)
        self.integer.copy_(mean.integer)
        self.take_buffers()

    # Gradients

    @torch.no_grad()
    def gradients(self) -> ReplicaState:
        """The gradients in flat buffers, zero where a parameter has none, and a copy of the buffers."""
        if self._grads is None:
            flats = tuple(torch.zeros_like(flat) for flat in self._flats)
            self._grads = tuple(_as_reals(flat) for flat in flats)
            self._grad_views = self._views_of(flats)
        has_grad = tuple(param.grad is not None for param in self.trainable)
        if not all(has_grad):
            for flat in self._grads:
                flat.zero_()
        targets = [view for view, has in zip(self._grad_views, has_grad, strict=True) if has]
        grads = [param.grad for param in self.trainable if param.grad is not None]
        if any(grad.is_sparse for grad in grads):
            raise ModelError("policy sync cannot average sparse gradients: use cadence, or sparse=False")
        if grads:
            torch._foreach_copy_(targets, grads)
        self._gather_buffers()
        return ReplicaState(params=self._grads, floating=self.floating, integer=self.integer, has_grad=has_grad)

    def take_gradients(self, has_grad: Sequence[bool]) -> None:
        """Let the parameters' gradients be the flat ones, as averaged, for those that have one on any rank."""
        for param, view, has in zip(self.trainable, self._grad_views, has_grad, strict=True):
            param.grad = view if has else None
        self.take_buffers()


def _as_reals(flat: Tensor) -> Tensor:
    return torch.view_as_real(flat).view(-1) if flat.is_complex() else flat


def _floating_buffers(model: nn.Module) -> list[list[Tensor]]:
    """Floating buffers by dtype; complex ones (rotary embeddings) as the pairs of reals that they are in memory."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for buffer in model.buffers():
        real = torch.view_as_real(buffer) if buffer.is_complex() else buffer
        if real.is_floating_point():
            groups.setdefault(real.dtype, []).append(real)
    return list(groups.values())


def _integer_buffers(model: nn.Module) -> list[Tensor]:
    return [buffer for buffer in model.buffers() if not (buffer.is_floating_point() or buffer.is_complex())]


def _scatter(flat: Tensor, targets: Sequence[Tensor]) -> None:
    offset = 0
    for target in targets:
        target.copy_(flat[offset : offset + target.numel()].view(target.shape))
        offset += target.numel()


def check_trainable(model: nn.Module) -> None:
    """Refuse a model that cannot be replicated.

    Raises:
        ModelError: It has no trainable parameter, or a parameter or buffer is lazy.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    lazy = [name for name, tensor in tensors if is_lazy(tensor)]
    if lazy:
        raise ModelError(f"{lazy[0]} is lazy: run a batch through the model in model_factory before returning it")
    if not any(param.requires_grad for param in model.parameters()):
        raise ModelError("the model has no trainable parameter: nothing can be trained")


def check_is_new(model: nn.Module, initial: nn.Module) -> None:
    """Refuse a replica that shares parameters with the first: workers would train one and the same model.

    Raises:
        ModelError: They share one.
    """
    owned = {id(param) for param in initial.parameters()}
    for name, param in model.named_parameters():
        if id(param) in owned:
            raise ModelError(
                f"model_factory must build a new model each time it is called: {name} is shared by replicas"
            )


@torch.no_grad()
def load_initial(model: nn.Module, initial: nn.Module) -> None:
    """Give ``model`` the parameters and buffers of ``initial``, frozen and non-persistent ones too.

    Raises:
        ModelError: Names, shapes, memory orders (flat buffers hold memory as it lies), dtypes or what is trainable
            differ; the message names the first that does.
    """
    _copy_all(dict(model.named_parameters()), dict(initial.named_parameters()), what="parameter")
    _copy_all(dict(model.named_buffers()), dict(initial.named_buffers()), what="buffer")


def _copy_all(targets: Mapping[str, Tensor], sources: Mapping[str, Tensor], *, what: str) -> None:
    for name in [*sources, *targets]:
        if name not in targets or name not in sources:
            raise ModelError(f"model_factory must build the same model each time: {what} {name} is not in all replicas")
        target, source = targets[name], sources[name]
        for aspect, mine, first in (
            ("shape", tuple(target.shape), tuple(source.shape)),
            ("memory order", _memory_order(target), _memory_order(source)),
            ("dtype", target.dtype, source.dtype),
            ("requires_grad", target.requires_grad, source.requires_grad),
        ):
            if mine != first:
                raise ModelError(
                    f"model_factory must build the same model each time: {what} {name} has {aspect} {mine} here and"
                    f" {first} in the first replica"
                )
        target.copy_(source)
