"""The weighted mean of replicas: sum(n_r x theta_r) / sum(n_r), one meaning for every backend."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flodl_core.replica import ReplicaState
from flodl_core.tally import Tally

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Averager:
    """Averages states of one layout; its buffers are reused, so one thread at a time may use it."""

    def __init__(self) -> None:
        self._mean: ReplicaState | None = None

    @torch.no_grad()
    def average(self, states: Mapping[int, ReplicaState], terms: Tally) -> ReplicaState:
        """Average the states of the ranks that have a weight.

        Sums run in rank order and in float32 or wider. A rank without weight is left out, never multiplied by zero.

        Args:
            states: By rank, all of one layout.
            terms: Weights, and whose integer buffers are taken.

        Returns:
            The mean, in the accumulation's dtype, valid until the next call.
        """
        total = sum(terms.weights.values())
        ranks = sorted(terms.weights)
        shares = [terms.weights[rank] / total for rank in ranks]
        mean = self._buffers(states[ranks[0]])
        for group, out in enumerate(mean.params):
            _weighted_sum([states[rank].params[group] for rank in ranks], shares, out)
        for group, out in enumerate(mean.floating):
            _average_buffers([states[rank].floating[group] for rank in ranks], shares, out)
        mean.integer.copy_(states[terms.most_work].integer)
        used = [states[rank].has_grad for rank in ranks]
        return ReplicaState(
            params=mean.params,
            floating=mean.floating,
            integer=mean.integer,
            has_grad=tuple(any(has) for has in zip(*used, strict=True)),
        )

    def _buffers(self, like: ReplicaState) -> ReplicaState:
        if self._mean is None:
            self._mean = ReplicaState(
                params=tuple(_wide_like(tensor) for tensor in like.params),
                floating=tuple(_wide_like(tensor) for tensor in like.floating),
                integer=torch.empty_like(like.integer),
            )
        return self._mean


def _wide_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))


def _weighted_sum(tensors: Sequence[Tensor], shares: Sequence[float], out: Tensor) -> None:
    out.copy_(tensors[0])
    if len(tensors) == 1:
        return
    out.mul_(shares[0])
    for tensor, share in zip(tensors[1:], shares[1:], strict=True):
        out.add_(tensor, alpha=share)


def _average_buffers(tensors: Sequence[Tensor], shares: Sequence[float], out: Tensor) -> None:
    """As ``_weighted_sum``, but elements that are bitwise equal everywhere stay (a causal mask holds -inf)."""
    _weighted_sum(tensors, shares, out)
    first = tensors[0]
    bits = _BITS[first.element_size()]
    same = torch.ones(first.shape, dtype=torch.bool, device=first.device)
    for tensor in tensors[1:]:
        same &= tensor.view(bits) == first.view(bits)
    torch.where(same, first.to(out.dtype), out, out=out)


@torch.no_grad()
def divergence(states: Mapping[int, ReplicaState], mean: ReplicaState, ranks: Sequence[int]) -> dict[int, float]:
    """How far replicas had drifted from their mean: ``||theta_r - mean|| / ||mean||`` over all parameters.

    Returns:
        By rank, for ``ranks``; 0 where the mean is 0 and the replica too, infinite where only the mean is.
    """
    norm = _norm(mean.params)
    distances = {rank: _distance(states[rank].params, mean.params) for rank in ranks}
    return {rank: d / norm if norm > 0 else (float("inf") if d > 0 else 0.0) for rank, d in distances.items()}


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(sum(float(torch.linalg.vector_norm(tensor)) ** 2 for tensor in tensors) ** 0.5)


def _distance(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return float(sum(float(torch.dist(a.to(b.dtype), b)) ** 2 for a, b in zip(tensors, others, strict=True)) ** 0.5)
