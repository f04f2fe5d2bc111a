"""The samples of one epoch, dealt out chunk by chunk."""


class ChunkPool:
    """Deals consecutive slices of an epoch's permutation and keeps account of who trains what.

    Every operation is O(1). Owner: the coordinator's thread.
    """

    __slots__ = (
        "_completed",
        "_cursor",
        "_dispatched",
        "_num_chunks",
        "_total_completed",
        "_total_samples",
        "epoch",
    )

    def __init__(self, epoch: int, total_samples: int, world_size: int) -> None:
        """Start with everything undealt.

        Args:
            epoch: The epoch, for whoever holds several pools.
            total_samples: Samples of the epoch, at least 0.
            world_size: Ranks, at least 1.

        Raises:
            ValueError: ``total_samples`` is negative or ``world_size`` below 1.
        """
        if total_samples < 0:
            raise ValueError(f"total_samples must be at least 0, not {total_samples}")
        if world_size < 1:
            raise ValueError(f"world_size must be at least 1, not {world_size}")
        self.epoch = epoch
        self._total_samples = total_samples
        self._cursor = 0
        self._total_completed = 0
        self._dispatched = [0] * world_size
        self._completed = [0] * world_size
        self._num_chunks = [0] * world_size

    @property
    def total_samples(self) -> int:
        """Samples of the epoch."""
        return self._total_samples

    @property
    def remaining(self) -> int:
        """Samples not dealt yet."""
        return self._total_samples - self._cursor

    def remaining_for(self, rank: int) -> int:
        """Samples that the rank may still be dealt: any that are left."""
        self._check_rank(rank)
        return self.remaining

    @property
    def total_in_flight(self) -> int:
        """Samples dealt and not completed yet, over all ranks."""
        return self._cursor - self._total_completed

    @property
    def is_done(self) -> bool:
        """Whether every sample is completed."""
        return self._total_completed == self._total_samples

    def dispatched(self, rank: int) -> int:
        """Samples dealt to the rank."""
        return self._dispatched[rank]

    def completed(self, rank: int) -> int:
        """Samples that the rank has completed."""
        return self._completed[rank]

    def in_flight(self, rank: int) -> int:
        """Samples dealt to the rank and not completed yet."""
        return self._dispatched[rank] - self._completed[rank]

    def num_chunks(self, rank: int) -> int:
        """Chunks dealt to the rank."""
        return self._num_chunks[rank]

    def take(self, size: int, rank: int) -> tuple[int, int] | None:
        """Deal the next samples to a rank.

        Args:
            size: Samples wanted, at least 1.
            rank: Who gets them.

        Returns:
            (offset, size) of the chunk, smaller than wanted where fewer are left; None when all are dealt.

        Raises:
            ValueError: ``size`` is below 1 or there is no such rank.
        """
        self._check_rank(rank)
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size}")
        offset, size = self._cursor, min(size, self.remaining)
        if size == 0:
            return None
        self._cursor += size
        self._dispatched[rank] += size
        self._num_chunks[rank] += 1
        return offset, size

    def complete(self, rank: int, samples: int) -> None:
        """Book samples as trained.

        Raises:
            ValueError: ``samples`` is negative or more than the rank has in flight, or there is no such rank.
        """
        self._check_rank(rank)
        if not 0 <= samples <= self.in_flight(rank):
            raise ValueError(
                f"rank {rank} can complete 0..{self.in_flight(rank)} samples of epoch {self.epoch}, not {samples}"
            )
        self._completed[rank] += samples
        self._total_completed += samples

    def _check_rank(self, rank: int) -> None:
        # A negative index would silently book for another rank.
        if not 0 <= rank < len(self._dispatched):
            raise ValueError(f"rank must be in 0..{len(self._dispatched) - 1}, not {rank}")
