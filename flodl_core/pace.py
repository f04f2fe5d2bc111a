"""How long rounds are: El Che fed with measured work and costs, and the windows that follow from it."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from flodl_core.elche import ElChe
from flodl_core.policies import ApplyPolicy
from flodl_core.rounds import NO_COUNT, batches_within, choose_deadline_ms

NUM_COSTS = 5
"""Averages whose median cost is fed to El Che."""
CUT_SHARE = 0.5
"""A round shorter than this share of the anchor's time was cut off, as the last one of an epoch is."""


@dataclass(slots=True)
class RoundWork:
    """What the ranks did in one round: batches, full batches and their busy time, by rank."""

    num_batches: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    full_batches: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    full_ms: dict[int, float] = field(default_factory=lambda: defaultdict(float))


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The windows of a round.

    Attributes:
        deadline_ms: Busy time to fill, or None where windows go by count alone.
        counts: Most batches, by rank.
        planned: Batches expected, by rank.
    """

    deadline_ms: float | None
    counts: Mapping[int, int]
    planned: Mapping[int, int]


class Pace:
    """Owned by the coordinator.

    Args:
        world_size: Ranks at the start.
        policy: Cadence goes by deadline, async by counts.
        anchor: Batches of the slowest rank in a round, at the start and at least.
        max_anchor: The most.
        overhead_target: Share of compute time that averaging may cost before rounds get longer.
        max_batch_diff: Batches that a rank may be planned ahead of the slowest, or None.
        speed_hint: A slow rank, and how many times as fast all others are, until they are measured.
    """

    def __init__(
        self,
        world_size: int,
        *,
        policy: ApplyPolicy,
        anchor: int,
        max_anchor: int,
        overhead_target: float,
        max_batch_diff: int | None,
        speed_hint: tuple[int, float] | None = None,
    ) -> None:
        self._policy = policy
        self._max_batch_diff = max_batch_diff
        self._world_size = world_size
        self._elche = ElChe(
            world_size,
            anchor,
            overhead_target=overhead_target,
            max_anchor=max_anchor,
            max_batch_diff=max_batch_diff,
            speed_hint=speed_hint,
        )
        self._costs_ms: deque[float] = deque(maxlen=NUM_COSTS)

    @property
    def anchor(self) -> int:
        """Batches of the slowest rank in a round."""
        return self._elche.anchor

    def count(self, rank: int) -> int:
        """Batches of the rank in about one round."""
        return self._elche.count(rank)

    def batch_ms(self, rank: int) -> float:
        """Smoothed milliseconds per full batch; 0 before the rank's first round with one."""
        return self._elche.batch_ms(rank)

    @property
    def _average_ms(self) -> float:
        return median(self._costs_ms) if self._costs_ms else 0.0

    def close_round(self, work: RoundWork, *, average_ms: float, hold: bool = False) -> None:
        """Learn from a round.

        Args:
            work: What was done in it.
            average_ms: What its average cost the workers.
            hold: Leave the anchor where it is.
        """
        # the median of the last few: one hiccup of the machine must not stretch the rounds for long
        self._costs_ms.append(average_ms)
        ranks = range(self._world_size)
        full_ms = [work.full_ms[rank] for rank in ranks]
        full_batches = [work.full_batches[rank] for rank in ranks]
        # an average after a few batches tells nothing of what a whole round's costs: the anchor would jump
        hold = hold or self._was_cut(full_ms, full_batches)
        self._elche.report(full_ms, full_batches, self._average_ms, hold=hold)

    def _was_cut(self, full_ms: Sequence[float], full_batches: Sequence[int]) -> bool:
        measured = (ms / num for ms, num in zip(full_ms, full_batches, strict=True) if num > 0)
        slowest_ms = max([*self._elche.ms_per_batch, *measured])
        return max(full_ms) < CUT_SHARE * self._elche.anchor * slowest_ms

    def unlimited(self, ranks: Sequence[int]) -> Windows:
        """Windows for ranks that are not measured yet: a count would let fast ranks wait for slow ones."""
        planned = {rank: self._elche.count(rank) for rank in ranks}
        return Windows(deadline_ms=None, counts=dict.fromkeys(ranks, NO_COUNT), planned=planned)

    def hinted(self, ranks: Sequence[int]) -> Windows:
        """Windows for ranks that are not measured yet, as they were said to be."""
        counts = {rank: self._elche.count(rank) for rank in ranks}
        return Windows(deadline_ms=None, counts=counts, planned=counts)

    def windows(self, ranks: Sequence[int], batch_ms: Callable[[int], float]) -> Windows:
        """Windows that end together, for ranks whose speed is known.

        Counts follow from the speeds themselves: El Che's own move in steps of 10 %, and for so long would a fast rank
        have to wait in each round.
        """
        speeds = [batch_ms(rank) for rank in ranks]
        deadline_ms = choose_deadline_ms(speeds, anchor=self._elche.anchor, average_ms=self._average_ms)
        fitting = {rank: batches_within(deadline_ms, ms) for rank, ms in zip(ranks, speeds, strict=True)}
        most = NO_COUNT if self._max_batch_diff is None else min(fitting.values()) + self._max_batch_diff
        planned = {rank: min(most, count) for rank, count in fitting.items()}
        if self._policy is ApplyPolicy.ASYNC:
            return Windows(deadline_ms=None, counts=planned, planned=planned)
        return Windows(deadline_ms=deadline_ms, counts=dict.fromkeys(ranks, most), planned=planned)
