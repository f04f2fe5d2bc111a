"""The weighted mean of replicas: sum(n_r x theta_r) / sum(n_r), one meaning for every backend.

One pass, block by block: while a block is in the cache it is averaged, compared with the replicas, taken further by the
outer optimizer where there is one, and, at a rendezvous, written to every replica. Each element is summed in rank
order, in float32 or wider, whatever the blocks and the number of threads, so all backends give the same bits.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from flodl_core.drift import Drift, DriftSums
from flodl_core.outer import OuterOptimizer
from flodl_core.replica import ReplicaState
from flodl_core.tally import Tally

BLOCK = 1 << 17
"""Elements in a block; ``benchmarks/averaging.py`` measures what comes of it."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

States = Mapping[int, ReplicaState]
"""By rank, all of one layout."""


class Averager:
    """Averages states of one layout; its buffers are reused, so one thread at a time may use it.

    In all methods, a rank without weight is left out of the sum, never multiplied by zero; floating buffers are
    averaged like parameters, and integer ones come from the rank that did most.

    Args:
        outer: What becomes of the mean in ``consensus`` and ``consensus_in_place``; None for nothing.
        block: Elements in a block.
    """

    def __init__(self, outer: OuterOptimizer | None = None, *, block: int = BLOCK) -> None:
        self._outer = outer
        self._block = block
        self._params: tuple[Tensor, ...] | None = None
        self._floating: tuple[Tensor, ...] | None = None
        self._integer: Tensor | None = None
        self._scratch: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def average(self, states: States, terms: Tally) -> ReplicaState:
        """The mean, in the accumulation's dtype, valid until the next call; no outer optimizer."""
        shares = _shares(terms)
        order = _order(states, terms)[: len(shares)]
        for group, out in enumerate(self._mean_like(states)):
            for _, (mean, *blocks) in _cut([out, *_group(states, order, group)], self._block):
                _weighted_sum(blocks, shares, mean)
        return self._state(states, terms)

    @torch.no_grad()
    def consensus(self, states: States, terms: Tally) -> tuple[ReplicaState, Drift]:
        """What all ranks are to take, valid until the next call, and how far they had drifted from their mean."""
        order = _order(states, terms)
        sums = DriftSums(order[: len(terms.num_samples)])
        for group, out in enumerate(self._mean_like(states)):
            for start, (mean, *blocks) in _cut([out, *_group(states, order, group)], self._block):
                self._agree(group, start, blocks, mean, terms, sums)
        return self._state(states, terms), sums.drift()

    @torch.no_grad()
    def consensus_in_place(self, states: States, terms: Tally) -> Drift:
        """As ``consensus``, but written to every state, also of ranks that were left out."""
        order = _order(states, terms)
        sums = DriftSums(order[: len(terms.num_samples)])
        for group in range(len(states[order[0]].params)):
            for start, blocks in _cut(_group(states, order, group), self._block):
                mean, _ = self._scratch_like(blocks[0])
                self._agree(group, start, blocks, mean, terms, sums)
                for block in blocks:
                    block.copy_(mean)
        self._share_buffers(states, terms)
        return sums.drift()

    @torch.no_grad()
    def average_in_place(self, states: States, terms: Tally) -> tuple[bool, ...]:
        """Write the mean to every state; no measures, no outer optimizer. In sync this runs for every batch.

        Returns:
            Which parameters have a gradient on any of the ranks that were averaged.
        """
        order, shares = _order(states, terms), _shares(terms)
        for group in range(len(states[order[0]].params)):
            for _, blocks in _cut(_group(states, order, group), self._block):
                first = blocks[0]
                # the sum gathers in the first replica itself where that is wide enough
                mean = first if first.dtype == _wide(first.dtype) else self._scratch_like(first)[0]
                _weighted_sum(blocks[: len(shares)], shares, mean)
                for block in blocks:
                    if block is not mean:
                        block.copy_(mean)
        self._share_buffers(states, terms)
        return _has_grad(states, terms)

    def _agree(
        self, group: int, start: int, blocks: Sequence[Tensor], mean: Tensor, terms: Tally, sums: DriftSums
    ) -> None:
        """Bring ``mean`` from nothing to what all ranks are to take."""
        shares = _shares(terms)
        _weighted_sum(blocks[: len(shares)], shares, mean)
        _, scratch = self._scratch_like(mean)
        sums.add(blocks, mean, scratch)
        if self._outer is not None:
            has_trained = any(terms.num_samples.values())
            self._outer.apply(group, start, mean, scratch, has_trained=has_trained)

    # Buffers: the model's, and those of the arithmetic

    def _state(self, states: States, terms: Tally) -> ReplicaState:
        source = states[terms.most_work].integer
        if self._integer is None:
            self._integer = torch.empty_like(source)
        self._integer.copy_(source)
        return ReplicaState(
            params=self._mean_like(states),
            floating=self._average_floating(states, terms),
            integer=self._integer,
            has_grad=_has_grad(states, terms),
        )

    def _share_buffers(self, states: States, terms: Tally) -> None:
        floating = self._average_floating(states, terms)
        integer = states[terms.most_work].integer
        for rank, state in states.items():
            for mine, mean in zip(state.floating, floating, strict=True):
                mine.copy_(mean)
            if rank != terms.most_work and integer.numel() > 0:
                state.integer.copy_(integer)

    def _average_floating(self, states: States, terms: Tally) -> tuple[Tensor, ...]:
        first = states[min(terms.weights)]
        if self._floating is None:
            self._floating = tuple(_wide_like(tensor) for tensor in first.floating)
        for group, out in enumerate(self._floating):
            _average_buffers(_group(states, list(terms.weights), group, floating=True), _shares(terms), out)
        return self._floating

    def _mean_like(self, states: States) -> tuple[Tensor, ...]:
        if self._params is None:
            self._params = tuple(_wide_like(tensor) for tensor in next(iter(states.values())).params)
        return self._params

    def _scratch_like(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Two tensors of this shape in the accumulation's dtype, the same ones for every block."""
        size, dtype = like.numel(), _wide(like.dtype)
        pair = self._scratch.get(dtype)
        if pair is None or pair[0].numel() < size:
            pair = self._scratch[dtype] = (torch.empty(size, dtype=dtype), torch.empty(size, dtype=dtype))
        return pair if pair[0].numel() == size else (pair[0][:size], pair[1][:size])


def _order(states: States, terms: Tally) -> list[int]:
    """Ranks with weight first, then the other finite ones, then those that were left out; each in rank order."""
    weightless = [rank for rank in terms.num_samples if rank not in terms.weights]
    return [*terms.weights, *weightless, *(rank for rank in terms.excluded if rank in states)]


def _shares(terms: Tally) -> list[float]:
    total = sum(terms.weights.values())
    return [weight / total for weight in terms.weights.values()]


def _has_grad(states: States, terms: Tally) -> tuple[bool, ...]:
    return tuple(map(any, zip(*(states[rank].has_grad for rank in terms.weights), strict=True)))


def _group(states: States, order: Sequence[int], group: int, *, floating: bool = False) -> list[Tensor]:
    return [(states[rank].floating if floating else states[rank].params)[group] for rank in order]


def _cut(tensors: Sequence[Tensor], size: int) -> Iterator[tuple[int, Sequence[Tensor]]]:
    """The same elements of all tensors, a block at a time: (position of the first, views)."""
    if tensors[0].numel() <= size:
        yield 0, tensors
        return
    for index, blocks in enumerate(zip(*(tensor.split(size) for tensor in tensors), strict=True)):
        yield index * size, blocks


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _wide_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, dtype=_wide(tensor.dtype))


def _weighted_sum(tensors: Sequence[Tensor], shares: Sequence[float], out: Tensor) -> None:
    """``out`` may be the first of the tensors."""
    first = tensors[0]
    if len(tensors) > 1 and first.dtype == out.dtype:
        torch.mul(first, shares[0], out=out)
    else:
        if out is not first:
            out.copy_(first)
        if len(tensors) == 1:
            return
        out.mul_(shares[0])  # once it is wide: not in a short type of the replica's
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
