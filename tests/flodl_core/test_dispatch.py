from __future__ import annotations

import heapq
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flodl_core.dispatch import chunk_batches
from flodl_core.rounding import round_half_away


class GreedyRun:
    """Ranks of constant speed that ask for more with at most one batch in hand, in virtual time."""

    def __init__(self, ms_per_batch: list[float], num_batches: int, anchor: int) -> None:
        self.ms = ms_per_batch
        self.rates = [1 / ms for ms in ms_per_batch]
        self.round_batches = [max(1, round_half_away(anchor * max(ms_per_batch) / ms)) for ms in ms_per_batch]
        self.remaining = num_batches
        self.in_flight = [0] * len(ms_per_batch)
        self.running: list[tuple[float, int]] = []

    def makespan_ms(self) -> float:
        for rank in range(len(self.ms)):
            self._go_on(rank, 0.0)
        now_ms = 0.0
        while self.running:
            now_ms, rank = heapq.heappop(self.running)
            self.in_flight[rank] -= 1
            self._go_on(rank, now_ms)
        return now_ms

    def _go_on(self, rank: int, now_ms: float) -> None:
        if self.in_flight[rank] <= 1 and self.remaining:
            taken = chunk_batches(
                remaining_batches=self.remaining,
                rank_in_flight=self.in_flight[rank],
                total_in_flight=sum(self.in_flight),
                own_rate=self.rates[rank],
                total_rate=sum(self.rates),
                fastest_rate=max(self.rates),
                round_batches=self.round_batches[rank],
            )
            self.remaining -= taken
            self.in_flight[rank] += taken
        if self.in_flight[rank]:
            heapq.heappush(self.running, (now_ms + self.ms[rank], rank))


def _best_makespan_ms(ms_per_batch: list[float], num_batches: int) -> float:
    """What dealing whole batches with perfect foresight reaches: each to whoever finishes it first."""
    finish = [(ms, ms) for ms in ms_per_batch]
    heapq.heapify(finish)
    for _ in range(num_batches - 1):
        end, ms = finish[0]
        heapq.heapreplace(finish, (end + ms, ms))
    return finish[0][0]


@given(st.lists(st.floats(0.5, 10.0), min_size=1, max_size=8), st.integers(1, 200), st.integers(1, 20))
@example([5.0] * 8, 3, 10)
@example([4.9] + [5.0] * 7, 4, 10)  # rounding to the nearest has the fastest do all four
@example([1.0, 2.5], 100, 10)
def test_pool_drains_and_all_ranks_finish_together(ms_per_batch: list[float], num_batches: int, anchor: int) -> None:
    run = GreedyRun(ms_per_batch, num_batches, anchor)
    makespan = run.makespan_ms()
    assert (run.remaining, sum(run.in_flight)) == (0, 0)
    allowed = _best_makespan_ms(ms_per_batch, num_batches) + max(ms_per_batch) + min(ms_per_batch)
    assert makespan <= allowed * (1 + 1e-9)


def _chunk(**changes: Any) -> int:
    arguments: dict[str, Any] = {
        "remaining_batches": 1000,
        "rank_in_flight": 1,
        "total_in_flight": 4,
        "own_rate": 0.4,
        "total_rate": 1.4,
        "fastest_rate": 1.0,
        "round_batches": 10,
    }
    return chunk_batches(**(arguments | changes))


def test_far_from_the_end_a_rank_takes_a_rounds_worth() -> None:
    assert _chunk() == 10


def test_slow_rank_leaves_the_last_batches_to_others() -> None:
    assert _chunk(remaining_batches=1, rank_in_flight=1, total_in_flight=2) == 0


def test_idle_rank_takes_a_batch_that_it_finishes_before_others_would() -> None:
    assert _chunk(remaining_batches=3, rank_in_flight=0, total_in_flight=4, own_rate=0.99, total_rate=8.0) == 1


def test_fastest_rank_takes_what_is_left() -> None:
    assert _chunk(remaining_batches=1, rank_in_flight=9, total_in_flight=9, own_rate=1.0) == 1


def test_empty_pool_gives_nothing_to_anybody() -> None:
    assert _chunk(remaining_batches=0, own_rate=1.0) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"own_rate": 0.0}, "rates must be positive"),
        ({"total_rate": -1.0}, "rates must be positive"),
        ({"round_batches": 0}, "round_batches"),
        ({"remaining_batches": -1}, "remaining"),
        ({"rank_in_flight": -1}, "rank_in_flight"),
    ],
)
def test_impossible_arguments_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _chunk(**changes)
