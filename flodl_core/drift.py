"""How far replicas had drifted from the mean that they take: what one pass over their parameters leaves behind."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

LEAST_NORM = 1e-10
"""Below this a vector of parameters is taken to have no direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Replicas before an average, compared with the mean after it; by rank, over all parameters.

    Attributes:
        divergence: ``||before - after|| / ||after||``.
        cosine: Cosine similarity of before and after; a rank is absent where the mean has no direction.
        magnitude: ``||before|| - ||after||``.
    """

    divergence: Mapping[int, float] = field(default_factory=dict)
    cosine: Mapping[int, float] = field(default_factory=dict)
    magnitude: Mapping[int, float] = field(default_factory=dict)


def relative_distance(distance: float, after_norm: float) -> float:
    """``distance / after_norm``; 0 where both are 0, infinite where only the norm is, or where either overflowed."""
    if not (math.isfinite(distance) and math.isfinite(after_norm)):
        return math.inf
    if after_norm > 0:
        return distance / after_norm
    return math.inf if distance > 0 else 0.0


def cosine_similarity(*, divergence: float, before_norm: float, after_norm: float) -> float | None:
    """Cosine of the angle between before and after, by the law of cosines from the lengths of the three sides.

    Args:
        divergence: ``||before - after|| / ||after||``.
        before_norm: ``||before||``.
        after_norm: ``||after||``.

    Returns:
        From -1 to 1; 0 where ``before`` has no direction, None where ``after`` has none.
    """
    if after_norm < LEAST_NORM:
        return None
    if before_norm < LEAST_NORM:
        return 0.0
    distance = divergence * after_norm
    cosine = (before_norm**2 + after_norm**2 - distance**2) / (2 * before_norm * after_norm)
    return cosine if math.isnan(cosine) else min(1.0, max(-1.0, cosine))


class DriftSums:
    """Sums of squares, block by block. Used by one thread.

    Sums within a block run in the accumulation's dtype, those over blocks in float64.

    Args:
        ranks: Ranks to measure, in the order of the blocks.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks
        self._before = [0.0] * len(ranks)
        self._distance = [0.0] * len(ranks)
        self._after = 0.0

    def add(self, blocks: Sequence[Tensor], mean: Tensor, scratch: Tensor) -> None:
        """Take a block.

        Args:
            blocks: The replicas', shape (n,); read only. Those beyond the ranks to measure are not looked at.
            mean: Their mean, shape (n,), in the accumulation's dtype; read only.
            scratch: Written to; shape and dtype of ``mean``.
        """
        self._after += square_sum(mean)
        for index in range(len(self._ranks)):
            block = blocks[index]
            self._before[index] += square_sum(block if block.dtype == mean.dtype else scratch.copy_(block))
            # not from the dot products of before and after: for replicas that are close, the digits would cancel
            self._distance[index] += square_sum(torch.sub(block, mean, out=scratch))

    def drift(self) -> Drift:
        """What the blocks come to."""
        after_norm = math.sqrt(self._after)
        divergence: dict[int, float] = {}
        cosine: dict[int, float] = {}
        magnitude: dict[int, float] = {}
        for rank, before, distance in sorted(zip(self._ranks, self._before, self._distance, strict=True)):
            norm = math.sqrt(before)
            divergence[rank] = relative_distance(math.sqrt(distance), after_norm)
            magnitude[rank] = norm - after_norm
            similarity = cosine_similarity(divergence=divergence[rank], before_norm=norm, after_norm=after_norm)
            if similarity is not None:
                cosine[rank] = similarity
        return Drift(divergence=divergence, cosine=cosine, magnitude=magnitude)


def square_sum(block: Tensor) -> float:
    """Sum of squares of a 1-D tensor; in float64 where its own dtype overflows."""
    total = torch.dot(block, block).item()
    if not math.isfinite(total) and block.dtype != torch.float64:
        wide = block.to(torch.float64)
        total = torch.dot(wide, wide).item()
    return float(total)
