"""The samples of one epoch, cut into one slice for each rank beforehand."""

from collections.abc import Sequence
from itertools import accumulate


class SlicedPool:
    """As ``ChunkPool``, but what is in a rank's slice goes to that rank alone.

    Every operation is O(1). Owner: the coordinator's thread.

    Args:
        sizes: Samples of each rank, shape (world_size,): consecutive slices of the epoch's permutation.
    """

    __slots__ = (
        "_completed",
        "_dispatched",
        "_sizes",
        "_starts",
        "_total_completed",
        "_total_dispatched",
        "_total_size",
    )

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self._starts = list(accumulate(sizes, initial=0))[:-1]
        self._dispatched = [0] * len(sizes)
        self._completed = [0] * len(sizes)
        self._total_size = sum(sizes)
        self._total_dispatched = 0
        self._total_completed = 0

    @property
    def total_in_flight(self) -> int:
        """Samples dealt and not completed yet, over all ranks."""
        return self._total_dispatched - self._total_completed

    @property
    def remaining(self) -> int:
        """Samples not dealt yet, over all ranks."""
        return self._total_size - self._total_dispatched

    @property
    def is_done(self) -> bool:
        """Whether every sample is completed."""
        return self._total_completed == self._total_size

    def remaining_for(self, rank: int) -> int:
        """Samples of the rank's slice that are not dealt yet."""
        return self._sizes[rank] - self._dispatched[rank]

    def dispatched(self, rank: int) -> int:
        """Samples dealt to the rank."""
        return self._dispatched[rank]

    def take(self, size: int, rank: int) -> tuple[int, int] | None:
        """Deal the next samples of its slice to a rank; as ``ChunkPool.take``."""
        assert size >= 1, "a chunk has samples"
        size = min(size, self.remaining_for(rank))
        if size == 0:
            return None
        offset = self._starts[rank] + self._dispatched[rank]
        self._dispatched[rank] += size
        self._total_dispatched += size
        return offset, size

    def complete(self, rank: int, samples: int) -> None:
        """Book samples as trained; as ``ChunkPool.complete``."""
        assert 0 <= samples <= self._dispatched[rank] - self._completed[rank], "more was trained than dealt"
        self._completed[rank] += samples
        self._total_completed += samples
