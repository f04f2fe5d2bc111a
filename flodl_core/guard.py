"""The convergence guard: notices that replicas drift apart faster and faster between averages."""

import itertools
import math
from collections import deque
from collections.abc import Mapping

from flodl_core.errors import ConfigError

HISTORY = 5
"""Averages that the guard remembers."""
RISING = 3
"""Averages in a row over which a divergence that rises strictly is a trend."""


class ConvergenceGuard:
    """Owned by the coordinator.

    Training is unstable where the largest divergence rose strictly over the last three averages and the last is above
    the threshold: a single high value, or a high but steady one, is how local SGD works.

    Args:
        threshold: The divergence that a rise has to end above to count; None turns the guard off.

    Raises:
        ConfigError: The threshold is negative or NaN.
    """

    def __init__(self, threshold: float | None) -> None:
        if threshold is not None and not threshold >= 0:
            raise ConfigError(f"the divergence threshold must be 0 or above, not {threshold!r}")
        self._threshold = threshold
        self._history: deque[float] = deque(maxlen=HISTORY)

    @property
    def history(self) -> tuple[float, ...]:
        """The largest divergence of each of the last averages, the oldest first; empty where the guard is off."""
        return tuple(self._history)

    def observe(self, divergence: Mapping[int, float]) -> bool:
        """Take note of an average.

        Args:
            divergence: ``||before - after|| / ||after||`` by rank. Where none is given (every rank was left out, or
                gradients were averaged) the replicas count as equal.

        Returns:
            Whether training is stable: the anchor and the overshoot may grow. Never where a divergence is not finite;
            always where the guard is off.
        """
        if self._threshold is None:
            return True
        # NaN compares as false with everything, so it would hide behind a finite maximum
        is_finite = all(math.isfinite(value) for value in divergence.values())
        self._history.append(max([0.0, *divergence.values()]) if is_finite else math.inf)
        return is_finite and not self._is_rising_above(self._threshold)

    def _is_rising_above(self, threshold: float) -> bool:
        last = list(self._history)[-RISING:]
        if len(last) < RISING or last[-1] <= threshold:
            return False
        return all(before < after for before, after in itertools.pairwise(last))
