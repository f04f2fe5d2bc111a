from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flodl_core.chunk_pool import ChunkPool
from tests.reference_data import reference_cases


def _state(pool: ChunkPool, world_size: int) -> list[Any]:
    ranks = range(world_size)
    return [
        pool.total_samples - pool.remaining,
        [pool.dispatched(rank) for rank in ranks],
        [pool.completed(rank) for rank in ranks],
        [pool.num_chunks(rank) for rank in ranks],
        [pool.in_flight(rank) for rank in ranks],
        pool.remaining,
        pool.is_done,
    ]


def _take_like_the_reference(pool: ChunkPool, size: int, rank: int, expected: list[int] | None) -> bool:
    """Returns whether ours does what the reference did; a chunk of nothing is refused instead."""
    if size == 0:
        with pytest.raises(ValueError, match="size must be at least 1"):
            pool.take(size, rank)
        return expected is None
    taken = pool.take(size, rank)
    assert (list(taken) if taken is not None else None) == expected
    return True


def _replay(case: dict[str, Any]) -> None:
    pool = ChunkPool(case["epoch"], case["total_samples"], case["world_size"])
    assert _state(pool, case["world_size"]) == case["init"]
    empty_chunks = [0] * case["world_size"]  # the reference counts a chunk of nothing as one
    for name, *row in case["ops"]:
        if name == "take":
            size, rank, result, *expected = row
            empty_chunks[rank] += not _take_like_the_reference(pool, size, rank, result)
        else:
            rank, samples, *expected = row
            pool.complete(rank, samples)
        expected[3] = [num - empty for num, empty in zip(expected[3], empty_chunks, strict=True)]
        assert _state(pool, case["world_size"]) == expected


def test_replays_the_reference() -> None:
    cases = [case for case in reference_cases("chunkpool") if not case["over_complete"]]
    assert cases
    for case in cases:
        _replay(case)


def test_completing_more_than_was_dealt_is_refused_and_changes_nothing() -> None:
    pool = ChunkPool(3, 100, 2)
    pool.take(10, 0)
    with pytest.raises(ValueError, match=r"rank 0 can complete 0\.\.10 samples of epoch 3, not 11"):
        pool.complete(0, 11)
    with pytest.raises(ValueError, match="rank 1 can complete"):
        pool.complete(1, 1)
    assert (pool.in_flight(0), pool.total_in_flight) == (10, 10)


def test_every_impossible_argument_is_refused() -> None:
    pool = ChunkPool(0, 10, 2)
    with pytest.raises(ValueError, match="rank"):
        pool.take(1, -1)
    with pytest.raises(ValueError, match="rank"):
        pool.complete(2, 0)
    with pytest.raises(ValueError, match="can complete"):
        pool.complete(0, -1)
    with pytest.raises(ValueError, match="total_samples"):
        ChunkPool(0, -1, 2)
    with pytest.raises(ValueError, match="world_size"):
        ChunkPool(0, 1, 0)


class PoolMachine(RuleBasedStateMachine):
    """Any interleaving of takes and completions deals every sample once, in order."""

    @initialize(total=st.integers(0, 200), world_size=st.integers(1, 4))
    def start(self, total: int, world_size: int) -> None:
        self.total, self.world_size = total, world_size
        self.pool = ChunkPool(0, total, world_size)
        self.dealt = 0
        self.outstanding = [0] * world_size

    @rule(size=st.integers(1, 60), rank=st.integers(0, 3))
    def take(self, size: int, rank: int) -> None:
        rank %= self.world_size
        taken = self.pool.take(size, rank)
        expected = min(size, self.total - self.dealt)
        assert taken == ((self.dealt, expected) if expected else None)
        self.dealt += expected
        self.outstanding[rank] += expected

    @rule(rank=st.integers(0, 3), share=st.floats(0, 1))
    def complete(self, rank: int, share: float) -> None:
        rank %= self.world_size
        samples = round(self.outstanding[rank] * share)
        self.pool.complete(rank, samples)
        self.outstanding[rank] -= samples

    @invariant()
    def books_balance(self) -> None:
        assert [self.pool.in_flight(rank) for rank in range(self.world_size)] == self.outstanding
        assert self.pool.total_in_flight == sum(self.outstanding)
        assert self.pool.remaining == self.total - self.dealt
        assert self.pool.is_done == (self.pool.remaining == 0 and sum(self.outstanding) == 0)


TestPoolMachine = PoolMachine.TestCase
