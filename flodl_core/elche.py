"""El Che, the cadence: how many batches each rank trains between two averages, anchored at the slowest rank."""

import math
from collections.abc import Sequence

from flodl_core.rounding import round_half_away

_DEAD_BAND = 0.10  # a count moves only when it changes by more than this share of itself
_MS_TOLERANCE = 1e-6  # a rank this close to the slowest is one of the slowest


def _clamp(x: float, low: float, high: float) -> float:
    return max(low, min(high, x))


class ElChe:
    """The cadence of one run.

    The slowest rank trains ``anchor`` batches to a round and every other rank as many as fit into the same time. The
    anchor grows while averaging costs more than ``overhead_target`` of the compute time, and shrinks by one while
    it costs less than half of that.

    Owner: the coordinator's thread.
    """

    __slots__ = (
        "_anchor",
        "_counts",
        "_is_calibrated",
        "_least_count",
        "_max_anchor",
        "_max_batch_diff",
        "_min_anchor",
        "_ms",
        "_overhead_target",
    )

    def __init__(
        self,
        world_size: int,
        anchor: int = 10,
        *,
        overhead_target: float = 0.10,
        max_anchor: int = 200,
        max_batch_diff: int | None = None,
        speed_hint: tuple[int, float] | None = None,
    ) -> None:
        """Start uncalibrated, with ``anchor`` batches for every rank.

        Args:
            world_size: Ranks, at least 1.
            anchor: Batches of the slowest rank in a round, at least 1; the anchor never adapts to below it.
            overhead_target: Averaging time as a share of compute time, clamped to 0.01..0.50.
            max_anchor: Upper limit of the anchor; see ``set_max_anchor``.
            max_batch_diff: Most batches between any two ranks' counts, at least 0, or None for no limit.
            speed_hint: (slowest rank, how many times as fast every other rank is); see ``set_speed_ratio``.

        Raises:
            ValueError: An argument is out of its range.
        """
        if world_size < 1:
            raise ValueError(f"world_size must be at least 1, not {world_size}")
        if anchor < 1:
            raise ValueError(f"anchor must be at least 1, not {anchor}")
        self._anchor = anchor
        self._min_anchor = anchor
        self._counts = [anchor] * world_size
        self._least_count = anchor
        self._ms = [0.0] * world_size
        self._is_calibrated = False
        self.set_overhead_target(overhead_target)
        self.set_max_anchor(max_anchor)
        self.set_max_batch_diff(max_batch_diff)
        if speed_hint is not None:
            self.set_speed_ratio(*speed_hint)

    @property
    def anchor(self) -> int:
        """Batches of the slowest rank in a round."""
        return self._anchor

    @property
    def counts(self) -> tuple[int, ...]:
        """Batches per rank in a round, shape (world_size,), within ``max_batch_diff`` of each other."""
        if self._max_batch_diff is None:
            return tuple(self._counts)
        # Bounded on the way out, not in place: the unbounded plan keeps following the speeds and never freezes.
        limit = self._least_count + self._max_batch_diff
        return tuple(min(count, limit) for count in self._counts)

    def count(self, rank: int) -> int:
        """Batches of the rank in a round. O(1), unlike ``counts``."""
        count = self._counts[rank]
        return count if self._max_batch_diff is None else min(count, self._least_count + self._max_batch_diff)

    @property
    def ms_per_batch(self) -> tuple[float, ...]:
        """Smoothed milliseconds per batch, shape (world_size,); 0 for a rank that was not measured yet."""
        return tuple(self._ms)

    def batch_ms(self, rank: int) -> float:
        """Smoothed milliseconds per batch of the rank; 0 where it was not measured yet. O(1)."""
        return self._ms[rank]

    @property
    def anchor_wall_ms(self) -> float:
        """Time that the slowest rank takes for its anchor, in milliseconds; 0 before calibration."""
        return self._anchor * max(self._ms) if self._is_calibrated else 0.0

    @property
    def total_batches(self) -> int:
        """Batches of all ranks in a round."""
        return sum(self.counts)

    @property
    def is_calibrated(self) -> bool:
        """Whether a report has measured at least one rank."""
        return self._is_calibrated

    @property
    def has_speed_hint(self) -> bool:
        """Whether the ranks' counts differ, by a hint or by measurement."""
        return len(set(self.counts)) > 1

    def set_overhead_target(self, share: float) -> None:
        """Set the averaging time aimed at, as a share of the compute time, clamped to 0.01..0.50."""
        self._overhead_target = _clamp(share, 0.01, 0.50)

    def set_max_anchor(self, limit: int) -> None:
        """Limit the anchor to ``limit``, at least 1, even where it was started higher; counts follow at a report."""
        self._max_anchor = max(limit, 1)
        self._min_anchor = min(self._min_anchor, self._max_anchor)
        self._anchor = min(max(self._anchor, self._min_anchor), self._max_anchor)

    def set_max_batch_diff(self, limit: int | None) -> None:
        """Limit how far two ranks' counts may be apart.

        Raises:
            ValueError: ``limit`` is negative.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"max_batch_diff must be at least 0 or None, not {limit}")
        self._max_batch_diff = limit

    def set_speed_ratio(self, slow_rank: int, ratio: float) -> None:
        """Plan as if every other rank were ``ratio`` times (at least once) as fast as ``slow_rank``.

        Raises:
            ValueError: There is no rank ``slow_rank``.
        """
        if not 0 <= slow_rank < len(self._counts):
            raise ValueError(f"slow_rank must be in 0..{len(self._counts) - 1}, not {slow_rank}")
        fast = max(1, round_half_away(self._anchor * max(ratio, 1.0)))
        self._counts = [self._anchor if rank == slow_rank else fast for rank in range(len(self._counts))]
        self._least_count = min(self._counts)

    def report(
        self, wall_ms: Sequence[float], num_batches: Sequence[int], sync_ms: float, *, hold: bool = False
    ) -> None:
        """Take in a finished round and plan the next.

        Args:
            wall_ms: Time of each rank in the round, shape (world_size,).
            num_batches: Batches of each rank in the round, shape (world_size,); 0 where it had none.
            sync_ms: Cost of the average that closed the round; 0 leaves the anchor alone.
            hold: Leave the anchor where it is; speeds and counts follow all the same.

        Raises:
            ValueError: ``wall_ms`` or ``num_batches`` has another length than the world size.
        """
        self._check_lengths(wall_ms, num_batches)
        for rank, (wall, batches) in enumerate(zip(wall_ms, num_batches, strict=True)):
            if batches > 0 and wall > 0:
                self._ms[rank] = self._smoothed_ms(self._ms[rank], wall / batches)
        if max(self._ms) <= 0:
            return
        compute_ms = max(wall_ms)
        if compute_ms > 0 and sync_ms > 0 and not hold:
            self._adapt_anchor(sync_ms / compute_ms)
        self._recount()
        self._is_calibrated = True

    def nudge(self, factor: float) -> None:
        """Shrink the anchor to ``factor`` (clamped to 0.1..1) of itself, also below where it started."""
        self._anchor = min(self._anchor, max(1, math.ceil(self._anchor * _clamp(factor, 0.1, 1.0))))
        if max(self._ms) > 0:
            self._recount()

    def clamp_total(self, limit: int) -> tuple[int, ...]:
        """Counts scaled down to at most ``limit`` batches in total; the plan itself stays.

        Every rank keeps at least one batch where ``limit`` allows. With ``max_batch_diff`` 0 the counts may differ by
        one where ``limit`` does not divide evenly: leaving those batches out could leave a round empty.

        Raises:
            ValueError: ``limit`` is negative.
        """
        if limit < 0:
            raise ValueError(f"limit must be at least 0, not {limit}")
        counts = self.counts
        total = sum(counts)
        if total <= limit:
            return counts
        scale = limit / total
        return _adjust_total([max(1, math.floor(count * scale)) for count in counts], limit, self._max_batch_diff)

    def _check_lengths(self, wall_ms: Sequence[float], num_batches: Sequence[int]) -> None:
        if not len(wall_ms) == len(num_batches) == len(self._ms):
            raise ValueError(
                f"expected {len(self._ms)} ranks, got {len(wall_ms)} times and {len(num_batches)} numbers of batches"
            )

    def _smoothed_ms(self, old: float, new: float) -> float:
        """Weigh a new time by how far it is off: jitter is averaged away, a true change is followed at once."""
        if not self._is_calibrated or old <= 0:
            return new
        alpha = _clamp(abs(new - old) / old, 0.1, 0.8)
        return alpha * new + (1 - alpha) * old

    def _adapt_anchor(self, overhead: float) -> None:
        target = self._overhead_target
        if overhead > target:
            # Limited before the ceiling: a huge overhead would overflow the integer.
            grown = math.ceil(min(self._anchor * (overhead / target), self._max_anchor))
            self._anchor = min(max(grown, self._min_anchor), self._max_anchor)
        elif overhead < target / 2 and self._anchor > self._min_anchor:
            self._anchor -= 1

    def _recount(self) -> None:
        slow = max(self._ms)
        for rank, count in enumerate(self._counts):
            target = self._target_count(self._ms[rank], slow)
            if not self._is_calibrated or abs(target - count) > _DEAD_BAND * count:
                self._counts[rank] = target
        self._least_count = min(self._counts)

    def _target_count(self, ms: float, slow: float) -> int:
        if ms <= 0 or abs(ms - slow) < _MS_TOLERANCE:
            return self._anchor
        return max(1, round_half_away(self._anchor * (slow / ms)))


def _adjust_total(counts: list[int], total: int, max_batch_diff: int | None) -> tuple[int, ...]:
    """Bring counts that are off by less than one per rank to exactly ``total``."""
    # From rank 0 on, but the smallest first where the distance between ranks is limited: filling up must not widen it.
    order = sorted(range(len(counts)), key=lambda rank: 0 if max_batch_diff is None else counts[rank])
    for rank in order[: max(0, total - sum(counts))]:
        counts[rank] += 1
    while sum(counts) > total:
        largest = max(range(len(counts)), key=lambda rank: (counts[rank], rank))
        counts[largest] -= 1
    return tuple(counts)
