from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.messages import Shutdown, SyncNow
from flodl_core.sync_logic import SyncBatch, SyncLogic
from flodl_core.worker_logic import BeginEpoch, Exit, Wait
from tests.flodl_core.message_factories import start_epoch


def _logic(
    rank: int = 0,
    *,
    world_size: int = 2,
    batch_size: int = 4,
    sizes: tuple[int, ...] = (),
    ratios: tuple[float, ...] | None = None,
) -> SyncLogic:
    logic = SyncLogic(
        rank=rank, world_size=world_size, batch_size=batch_size, epoch_size=sizes[0] if sizes else 1, ratios=ratios
    )
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
    logic = _logic(1, sizes=(19, 19))
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
        SyncBatch(round=3, epoch=1, offset=4, size=4, is_last=False),
    ]


def test_rank_without_samples_takes_part_all_the_same() -> None:
    logic = _logic(2, world_size=3, sizes=(2,))
    assert logic.next_action() == BeginEpoch(epoch=0)
    batch = _batch(logic)
    assert batch == SyncBatch(round=0, epoch=0, offset=2, size=0, is_last=True)
    assert logic.active_ranks() == 2


def test_batch_to_read_ahead_is_the_next_of_the_epoch() -> None:
    logic = _logic(1, sizes=(19, 19))
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
    ratios=st.lists(st.sampled_from([0.1, 1.0, 1.0, 3.0]), min_size=1, max_size=6),
    is_even=st.booleans(),
    batch_size=st.integers(1, 9),
    epoch_size=st.integers(1, 120),
    num_epochs=st.integers(1, 3),
    rounds_per_plan=st.none() | st.integers(1, 4),
)
def test_slices_of_all_ranks_cover_every_epoch_once(
    ratios: list[float],
    is_even: bool,
    batch_size: int,
    epoch_size: int,
    num_epochs: int,
    rounds_per_plan: int | None,
) -> None:
    ranks = range(len(ratios))
    shares = None if is_even else tuple(ratios)
    round_size = batch_size * len(ratios)
    plan_size = epoch_size if rounds_per_plan is None else rounds_per_plan * round_size
    logics = []
    for rank in ranks:
        logic = SyncLogic(
            rank=rank, world_size=len(ratios), batch_size=batch_size, epoch_size=epoch_size, ratios=shares
        )
        logics.append(logic)
        for epoch in range(num_epochs):
            for offset in range(0, epoch_size, plan_size):
                logic.handle(start_epoch(epoch, offset, min(plan_size, epoch_size - offset)))
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
        assert all(batch.size <= logic.full_size for batch, logic in zip(batches, logics, strict=True) if is_even)
        assert logics[0].active_ranks() == sum(batch.size > 0 for batch in batches)
        trained.update((batch.epoch, batch.offset + i) for batch in batches for i in range(batch.size))
        num_rounds += 1
        for logic in logics:
            logic.stepped(stop=False)
    assert trained == Counter((epoch, i) for epoch in range(num_epochs) for i in range(epoch_size))
    assert num_rounds == num_epochs * -(-epoch_size // round_size), "how an epoch is dealt changes nothing"


def test_ratios_split_every_round() -> None:
    logic = _logic(1, batch_size=10, sizes=(30,), ratios=(3, 1))
    assert logic.next_action() == BeginEpoch(epoch=0)
    assert logic.full_size == 5
    assert _batch(logic) == SyncBatch(round=0, epoch=0, offset=15, size=5, is_last=False)
    logic.stepped(stop=False)
    assert _batch(logic) == SyncBatch(round=1, epoch=0, offset=28, size=2, is_last=True), (
        "the odd one goes to the larger"
    )


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
