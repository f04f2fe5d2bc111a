"""Rounds: how long one lasts, and when a worker's window in it ends."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MIN_FIT = 0.7
"""A batch is started while this share of it fits before the deadline."""

_SLACK = 0.3
"""The deadline may differ from anchor x slowest by this share of it, either way."""

_GRID_SIZE = 25

_MOST_WHOLE = 1000
"""Whole batches that are tried; of more, the waste differs by less than one batch in so many."""

NO_COUNT = 1 << 62
"""A count that no window reaches: for rounds that go by their deadline alone."""


def choose_deadline_ms(ms_per_batch: Sequence[float], *, anchor: int, average_ms: float) -> float:
    """Choose the length of a round where the ranks' whole batches waste the least capacity.

    Model: a rank starts batches while ``_MIN_FIT`` of the next fits, at least one, and then waits until the last rank
    has finished and the average is taken. Waste is the share of all ranks' time that is spent waiting and averaging.
    Candidates are the slowest rank's whole batches and an even grid. Cost: O(ranks x candidates), vectorised.

    Args:
        ms_per_batch: Milliseconds per batch by rank, shape (world_size,); 0 for a rank that was not measured yet,
            which is ignored.
        anchor: Batches of the slowest rank in a round, at least 1.
        average_ms: What the average at the end of the round costs, in milliseconds, at least 0.

    Returns:
        Busy time of a round in milliseconds, within 30 % of anchor x slowest; of equals the nearest to it.

    Raises:
        ValueError: No rank was measured, a time is negative, or ``anchor`` is below 1.
    """
    if anchor < 1:
        raise ValueError(f"anchor must be at least 1, not {anchor}")
    if average_ms < 0 or min(ms_per_batch, default=0.0) < 0:
        raise ValueError(f"times must be at least 0, not {list(ms_per_batch)} and average_ms {average_ms}")
    measured = np.array([ms for ms in ms_per_batch if ms > 0], dtype=np.float64)
    if measured.size == 0:
        raise ValueError("no rank was measured yet: plan the round by counts")
    slowest = float(measured.max())
    candidates = _candidates(slowest, anchor)
    # Rounded so that candidates which differ only in their last bits count as equal.
    waste = np.round(_waste(measured, candidates, average_ms), 9)
    distance = np.abs(candidates - anchor * slowest)
    return float(candidates[np.lexsort((distance, waste))[0]])


def _candidates(slowest_ms: float, anchor: int) -> NDArray[np.float64]:
    low, high = (1 - _SLACK) * anchor, (1 + _SLACK) * anchor
    first, last = np.ceil(low), np.floor(high)
    num_whole = min(_MOST_WHOLE, int(last - first) + 1)
    whole = np.round(np.linspace(first, last, num_whole))
    return slowest_ms * np.concatenate((whole, np.linspace(low, high, _GRID_SIZE)))


def _waste(ms: NDArray[np.float64], deadlines: NDArray[np.float64], average_ms: float) -> NDArray[np.float64]:
    """Share of capacity lost for each deadline; ms has shape (ranks,), the result that of ``deadlines``."""
    # Batch k (from 0) is started if (k + _MIN_FIT) x ms <= deadline.
    num_batches = np.maximum(1.0, np.floor(deadlines[:, None] / ms - _MIN_FIT) + 1)
    finish = num_batches * ms
    length = finish.max(axis=1) + average_ms
    lost: NDArray[np.float64] = 1 - finish.sum(axis=1) / (ms.size * length)
    return lost


def batches_within(deadline_ms: float, batch_ms: float) -> int:
    """Batches that a rank does in a round: those of which 0.7 fit before the deadline, and at least one.

    Raises:
        ValueError: ``batch_ms`` is not positive.
    """
    if batch_ms <= 0:
        raise ValueError(f"batch_ms must be positive, not {batch_ms}")
    return max(1, math.floor(deadline_ms / batch_ms - _MIN_FIT) + 1)


class Window:
    """One rank's part of a round.

    Batches are started until their count is reached and, where there is a deadline, while 0.7 of the next fits into
    the remaining busy time. At least one is always started: a rank too slow for the round must still be measured.

    Owner: the worker.
    """

    __slots__ = ("busy_ms", "count", "deadline_ms", "num_batches", "round")

    def __init__(self, round: int, deadline_ms: float | None, count: int) -> None:  # noqa: A002 - the messages' term
        """Open a window without batches.

        Args:
            round: The round that it belongs to.
            deadline_ms: Busy time to fill, or None to go by count alone.
            count: Most batches to do; ``NO_COUNT`` to go by the deadline alone.
        """
        self.round = round
        self.deadline_ms = deadline_ms
        self.count = count
        self.num_batches = 0
        self.busy_ms = 0.0

    def record(self, busy_ms: float) -> None:
        """Book one batch that took ``busy_ms``."""
        self.num_batches += 1
        self.busy_ms += busy_ms

    def fits(self, batch_ms: float) -> bool:
        """Whether to start another batch, expected to take ``batch_ms``."""
        if self.num_batches == 0:
            return True
        if self.num_batches >= self.count:
            return False
        return self.deadline_ms is None or self.busy_ms + _MIN_FIT * batch_ms <= self.deadline_ms
