"""What is known of how fast each rank is."""

from collections.abc import Iterable, Mapping


class RankSpeeds:
    """Rates of ranks in full batches per millisecond: measured, or else guessed from those that were.

    A rank that was not measured is taken to be as fast as the mean of the measured ranks, times how fast it was said to
    be in relation to them. Before any measurement only relations are known, and the unit is arbitrary.

    Owner: the coordinator.

    Args:
        ranks: Who takes part.
        slow_rank: The rank that was said to be slow, or None where nothing was said.
        ratio: How many times as fast every other rank was said to be.
    """

    __slots__ = (
        "_batch_ms",
        "_fastest",
        "_hints",
        "_num_measured",
        "_sum_hints",
        "_sum_rates",
        "_sum_relative",
        "is_hinted",
    )

    def __init__(self, ranks: Iterable[int], *, slow_rank: int | None = None, ratio: float = 1.0) -> None:
        self._hints = {rank: 1.0 / ratio if rank == slow_rank else 1.0 for rank in ranks}
        self._batch_ms = dict.fromkeys(self._hints, 0.0)
        self.is_hinted = slow_rank is not None
        self._fastest: int | None = None
        self._recount()

    def _recount(self) -> None:
        measured = {rank: ms for rank, ms in self._batch_ms.items() if ms > 0}
        self._num_measured = len(measured)
        self._sum_rates = sum(1 / ms for ms in measured.values())
        self._sum_relative = sum(1 / ms / self._hints[rank] for rank, ms in measured.items())
        self._sum_hints = sum(hint for rank, hint in self._hints.items() if rank not in measured)
        self._fastest = min(measured, key=measured.__getitem__, default=None)

    @property
    def all_measured(self) -> bool:
        """Whether every rank was measured."""
        return self._num_measured == len(self._batch_ms)

    @property
    def fastest(self) -> int | None:
        """The fastest of the measured ranks."""
        return self._fastest

    def batch_ms(self, rank: int) -> float:
        """Milliseconds per full batch; 0 for a rank that was not measured."""
        return self._batch_ms[rank]

    def measure(self, rank: int, batch_ms: float) -> None:
        """Take a new estimate in milliseconds per full batch; 0 makes it unknown.

        O(1) but where a rank becomes unknown or the fastest slows.
        """
        before = self._batch_ms[rank]
        self._batch_ms[rank] = batch_ms
        if batch_ms <= 0 or (rank == self._fastest and batch_ms > before):
            self._recount()
            return
        if before <= 0:
            self._num_measured += 1
            self._sum_hints = 0.0 if self.all_measured else self._sum_hints - self._hints[rank]
        change = 1 / batch_ms - (1 / before if before > 0 else 0.0)
        self._sum_rates += change
        self._sum_relative += change / self._hints[rank]
        if self._fastest is None or batch_ms < self._batch_ms[self._fastest]:
            self._fastest = rank

    def measure_all(self, batch_ms: Mapping[int, float]) -> None:
        """Take new estimates of many ranks at once."""
        self._batch_ms |= batch_ms
        self._recount()

    def remove(self, rank: int) -> None:
        """The rank has left."""
        del self._batch_ms[rank], self._hints[rank]
        self._recount()

    @property
    def _unit_rate(self) -> float:
        """Rate of an unmeasured rank of which nothing was said."""
        return self._sum_relative / self._num_measured if self._num_measured else 1.0

    def rate(self, rank: int) -> float:
        """Full batches per millisecond; a guess is never above the fastest measured rank."""
        batch_ms = self._batch_ms[rank]
        return 1 / batch_ms if batch_ms > 0 else min(self._unit_rate * self._hints[rank], self.fastest_rate)

    @property
    def fastest_rate(self) -> float:
        """Rate of the fastest measured rank; before any measurement that of a rank of which nothing was said."""
        return 1.0 if self._fastest is None else 1 / self._batch_ms[self._fastest]

    @property
    def total_rate(self) -> float:
        """Rate of all ranks together, at least that of the fastest."""
        # a running sum: its last bits may be off
        return max(self.fastest_rate, self._sum_rates + self._unit_rate * self._sum_hints)
