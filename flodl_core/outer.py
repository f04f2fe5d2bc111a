"""The outer optimizer: what becomes of the mean of the replicas before they take it.

Local SGD seen from above: the displacement of the replicas' mean from the consensus that they started from is minus a
gradient, and SGD with momentum makes the next consensus of it (SlowMo, Wang et al. 2019; DiLoCo, Douillard et al.
2023).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flodl_core.errors import ConfigError, StateError


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterOptions:
    """SGD with momentum on the displacement of the mean from the last consensus (DiLoCo, Douillard et al. 2023).

    Attributes:
        lr: Factor of the step, above 0.
        momentum: From 0 to below 1.
        nesterov: Whether to look ahead; needs momentum.
    """

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"the outer lr must be a number above 0, not {self.lr!r}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"the outer momentum must be from 0 to below 1, not {self.momentum!r}")
        if self.nesterov and self.momentum == 0:
            raise ConfigError("nesterov needs an outer momentum above 0: pass nesterov=False")

    @property
    def is_identity(self) -> bool:
        """Whether the next consensus is the mean itself."""
        return self.lr == 1.0 and self.momentum == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterState:
    """What an outer optimizer goes on from, for checkpoints.

    Attributes:
        consensus: What all replicas took last, one flat tensor per dtype, as in ``ReplicaState.params``.
        velocity: The running sum of gradients, in float32 or wider; empty without momentum.
    """

    consensus: tuple[Tensor, ...]
    velocity: tuple[Tensor, ...]


class OuterOptimizer:
    """SGD with (Nesterov) momentum from consensus to consensus, as ``torch.optim.SGD`` does it. Not thread-safe.

    With g = x_{k-1} - mean_k: v = momentum x v + g; x_k = x_{k-1} - lr x (g + momentum x v), or x_{k-1} - lr x v
    without Nesterov.

    Args:
        options: How to step.
        initial: x_0, the parameters that all replicas start from, one flat tensor per dtype; copied.
    """

    def __init__(self, options: OuterOptions, initial: Sequence[Tensor]) -> None:
        self._options = options
        # in the replicas' own dtype: what they took is the rounded value, and rounding must not look like training
        self._consensus = tuple(tensor.detach().clone() for tensor in initial)
        self._velocity: tuple[Tensor, ...] = ()
        if options.momentum > 0:
            self._velocity = tuple(
                torch.zeros_like(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32)) for tensor in initial
            )

    @torch.no_grad()
    def apply(self, group: int, start: int, mean: Tensor, scratch: Tensor, *, has_trained: bool) -> None:
        """Turn a block of the mean into the same block of the next consensus.

        Args:
            group: Which flat tensor.
            start: Position of the block's first element in it.
            mean: Shape (n,), in the accumulation's dtype; becomes the consensus.
            scratch: Written to; shape and dtype of ``mean``.
            has_trained: Whether anything was trained for this average; if not, the consensus stays as it is.
        """
        consensus = self._consensus[group].narrow(0, start, mean.numel())
        if not has_trained:
            mean.copy_(consensus)
            return
        step = torch.sub(consensus, mean, out=scratch)
        if self._velocity:
            velocity = self._velocity[group].narrow(0, start, mean.numel())
            velocity.mul_(self._options.momentum).add_(step)
            step = step.add_(velocity, alpha=self._options.momentum) if self._options.nesterov else velocity
        torch.add(consensus, step, alpha=-self._options.lr, out=mean)
        consensus.copy_(mean)

    def state(self) -> OuterState:
        """A copy of the state."""
        return OuterState(
            consensus=tuple(tensor.clone() for tensor in self._consensus),
            velocity=tuple(tensor.clone() for tensor in self._velocity),
        )

    @torch.no_grad()
    def load(self, state: OuterState) -> None:
        """Go on from ``state``.

        Raises:
            StateError: Its tensors are not of this optimizer's number, shape and dtype.
        """
        mine, theirs = (*self._consensus, *self._velocity), (*state.consensus, *state.velocity)
        for expected, given in zip(_layout(mine), _layout(theirs), strict=False):
            if expected != given:
                raise StateError(f"the outer optimizer's state does not fit: expected {expected}, not {given}")
        if len(mine) != len(theirs):
            raise StateError(f"the outer optimizer's state has {len(theirs)} tensors where {len(mine)} are needed")
        for target, source in zip(mine, theirs, strict=True):
            target.copy_(source)


def make_outer(options: OuterOptions | None, initial: Sequence[Tensor]) -> OuterOptimizer | None:
    """The optimizer that the options describe; None where replicas simply take their mean, so that it costs nothing."""
    return None if options is None or options.is_identity else OuterOptimizer(options, initial)


def _layout(tensors: Sequence[Tensor]) -> list[str]:
    return [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in tensors]
