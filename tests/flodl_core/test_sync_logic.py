from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.messages import Shutdown, SyncNow
from flodl_core.sync_logic import SyncBatch, SyncLogic
from flodl_core.worker_logic import BeginEpoch, Exit, Wait
from tests.flodl_core.message_factories import start_epoch


def _logic(rank: int = 0, *, world_size: int = 2, batch_size: int = 4, sizes: tuple[int, ...] = ()) -> SyncLogic:
    logic = SyncLogic(rank=rank, world_size=world_size, batch_size=batch_size)
    for epoch, size in enumerate(sizes):
        logic.handle(start_epoch(epoch, 0, size))
    return logic


def _batch(logic: SyncLogic) -> SyncBatch:
    action = logic.next_action()
    assert isinstance(action, SyncBatch)
    return action


def test_worker_without_an_epoch_waits() -> None:
    assert _logic().next_action() == Wait()


def test_rounds_take_the_next_samples_and_what_is_left_is_split_evenly() -> None:
    logic = _logic(1, sizes=(19, 8))
    actions = []
    for _ in range(6):
        action = logic.next_action()
        actions.append(action)
        if isinstance(action, SyncBatch):
            logic.stepped(stop=False)
    assert actions == [
        BeginEpoch(epoch=0),
        SyncBatch(round=0, epoch=0, offset=4, size=4, is_last=False),
        SyncBatch(round=1, epoch=0, offset=12, size=4, is_last=False),
        SyncBatch(round=2, epoch=0, offset=18, size=1, is_last=True),
        BeginEpoch(epoch=1),
        SyncBatch(round=3, epoch=1, offset=4, size=4, is_last=True),
    ]
    assert logic.next_action() == Wait()


def test_rank_without_samples_takes_part_all_the_same() -> None:
    logic = _logic(2, world_size=3, sizes=(2,))
    assert logic.next_action() == BeginEpoch(epoch=0)
    batch = _batch(logic)
    assert batch == SyncBatch(round=0, epoch=0, offset=2, size=0, is_last=True)
    assert logic.active_ranks(batch) == 2


def test_batch_to_read_ahead_is_the_next_of_the_epoch() -> None:
    logic = _logic(1, sizes=(19, 8))
    ahead = []
    for _ in range(3):
        ahead.append(logic.next_batch)
        logic.stepped(stop=False)
    assert [(batch.offset, batch.size) if batch else None for batch in ahead] == [(12, 4), (18, 1), None]
    assert _logic().next_batch is None


def test_worker_told_to_end_goes_on_until_a_rounds_result_says_so() -> None:
    logic = _logic(sizes=(80,))
    assert logic.next_action() == BeginEpoch(epoch=0)
    logic.handle(Shutdown(hand_in=True))
    for number in range(2):
        assert _batch(logic).round == number
        logic.stepped(stop=False)
    logic.stepped(stop=True)
    assert logic.next_action() == Exit(hand_in=True)


def test_result_that_says_stop_may_come_before_the_message() -> None:
    logic = _logic(sizes=(80,))
    assert logic.next_action() == BeginEpoch(epoch=0)
    assert _batch(logic).round == 0
    logic.stepped(stop=True)
    assert logic.next_action() == Wait()
    logic.handle(Shutdown(hand_in=False))
    assert logic.next_action() == Exit(hand_in=False)


def test_worker_alone_ends_at_once() -> None:
    logic = _logic(world_size=1, sizes=(80,))
    assert logic.next_action() == BeginEpoch(epoch=0)
    assert _batch(logic).round == 0
    logic.stepped(stop=False)
    logic.handle(Shutdown(hand_in=True))
    assert logic.next_action() == Exit(hand_in=True)


def test_completed_worker_ends() -> None:
    logic = _logic(sizes=(8,))
    assert logic.next_action() == BeginEpoch(epoch=0)
    logic.stepped(stop=False)
    logic.handle(Shutdown(hand_in=False))
    assert logic.next_action() == Exit(hand_in=False)


def test_message_that_has_no_meaning_under_sync_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError, match="SyncNow has no meaning under sync"):
        _logic().handle(SyncNow(round=0))


@given(
    world_size=st.integers(1, 6),
    batch_size=st.integers(1, 9),
    sizes=st.lists(st.integers(1, 120), min_size=1, max_size=3),
)
def test_slices_of_all_ranks_cover_every_epoch_once(world_size: int, batch_size: int, sizes: list[int]) -> None:
    logics = [
        _logic(rank, world_size=world_size, batch_size=batch_size, sizes=tuple(sizes)) for rank in range(world_size)
    ]
    trained: Counter[tuple[int, int]] = Counter()
    num_rounds = 0
    while True:
        actions = [logic.next_action() for logic in logics]
        assert len({type(action) for action in actions}) == 1, "ranks do not go in step"
        if isinstance(actions[0], Wait):
            break
        batches = [action for action in actions if isinstance(action, SyncBatch)]
        if not batches:
            assert len(set(actions)) == 1, "ranks begin different epochs"
            continue
        assert {batch.round for batch in batches} == {num_rounds}
        assert len({(batch.epoch, batch.is_last) for batch in batches}) == 1
        assert all(batch.size <= batch_size for batch in batches)
        assert logics[0].active_ranks(batches[0]) == sum(batch.size > 0 for batch in batches)
        trained.update((batch.epoch, batch.offset + i) for batch in batches for i in range(batch.size))
        num_rounds += 1
        for logic in logics:
            logic.stepped(stop=False)
    assert trained == Counter((epoch, i) for epoch, size in enumerate(sizes) for i in range(size))
    assert num_rounds == sum(-(-size // (world_size * batch_size)) for size in sizes)


@given(world_size=st.integers(2, 5), size=st.integers(1, 60), stop_round=st.integers(0, 10), late=st.booleans())
def test_all_ranks_end_in_the_same_round(world_size: int, size: int, stop_round: int, late: bool) -> None:
    num_rounds = -(-size // (2 * world_size))
    ended = set()
    for rank in range(world_size):
        logic = _logic(rank, world_size=world_size, batch_size=2, sizes=(size,))
        if not late or rank == 0:  # some hear of the end before it is decided, some after
            logic.handle(Shutdown(hand_in=rank == 0))
        round_ = 0
        while not isinstance(action := logic.next_action(), Wait | Exit):
            if isinstance(action, SyncBatch):
                logic.stepped(stop=action.round == stop_round)
                round_ += 1
        logic.handle(Shutdown(hand_in=rank == 0))
        assert logic.next_action() == Exit(hand_in=rank == 0)
        ended.add(round_)
    assert ended == {min(num_rounds, stop_round + 1)}
