"""How far a fast rank may stream into the next epoch."""


class OvershootLimit:
    """Batches that a rank may train past its plan for an epoch.

    A fixed limit stays. The automatic one starts at total_batches / 100, within 2..5, and grows by one after each
    stable average, up to total_batches / 50, within 3..10 (so it never comes near 15, the most that is tolerable).

    Owner: the coordinator's thread.
    """

    __slots__ = ("_ceiling", "_limit")

    def __init__(self, total_batches: int, fixed: int | None = None) -> None:
        """Start at the fixed limit, or at the automatic one's first value.

        Args:
            total_batches: Batches of all ranks in an epoch, at least 0.
            fixed: The limit asked for, at least 0, or None for the automatic one.

        Raises:
            ValueError: An argument is negative.
        """
        if total_batches < 0:
            raise ValueError(f"total_batches must be at least 0, not {total_batches}")
        if fixed is not None and fixed < 0:
            raise ValueError(f"max_overshoot must be at least 0 or None, not {fixed}")
        self._limit = min(max(total_batches // 100, 2), 5) if fixed is None else fixed
        self._ceiling = min(max(total_batches // 50, 3), 10) if fixed is None else fixed

    @property
    def limit(self) -> int:
        """Batches past the plan that are allowed now."""
        return self._limit

    def on_average(self, stable: bool) -> None:
        """Note an average; ``stable`` when the replicas did not drift apart before it."""
        if stable:
            self._limit = min(self._limit + 1, self._ceiling)
