"""The convergence guard: whether replicas drift apart more and more."""

import math
from collections import deque
from collections.abc import Mapping

NUM_KEPT = 5
"""Averages whose largest divergence is remembered."""
NUM_RISING = 3
"""Rising values in a row that make a drift."""


class ConvergenceGuard:
    """Owned by the coordinator.

    Args:
        threshold: Divergence above which a rising one is a drift, or None to take every average as stable.
    """

    def __init__(self, threshold: float | None) -> None:
        self._threshold = threshold
        self._history: deque[float] = deque(maxlen=NUM_KEPT)

    @property
    def history(self) -> tuple[float, ...]:
        """The largest divergence of the last averages, the oldest first."""
        return tuple(self._history)

    def observe(self, divergence: Mapping[int, float]) -> bool:
        """Take in an average.

        Args:
            divergence: ``||before - after|| / ||after||`` by rank, at least 0.

        Returns:
            Whether it was stable: not the third of rising values with the last above the threshold, and finite.
        """
        if self._threshold is None:
            return True
        values = list(divergence.values())
        if not all(math.isfinite(value) for value in values):
            return False
        self._history.append(max(values, default=0.0))
        last = list(self._history)[-NUM_RISING:]
        is_rising = len(last) == NUM_RISING and last[0] < last[1] < last[2]
        return not (is_rising and last[-1] > self._threshold)
