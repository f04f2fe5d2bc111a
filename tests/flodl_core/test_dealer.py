from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flodl_core.dealer import CHUNK_MS, LOW_WATER_MS, PROBE_BATCHES, Dealer
from flodl_core.messages import EpochPlan
from flodl_core.overshoot import OvershootLimit
from tests.flodl_core.message_factories import plan

BATCH_SIZE = 4


def _dealer(
    *,
    world_size: int = 2,
    epoch_size: int = 400,
    num_epochs: int = 3,
    overshoot: int = 2,
    batch_ms: float = 0.0,
    **how: Any,
) -> Dealer:
    dealer = Dealer(
        range(world_size),
        epoch_size=epoch_size,
        batch_size=BATCH_SIZE,
        num_epochs=num_epochs,
        overshoot=OvershootLimit(100, overshoot),
        **how,
    )
    for rank in range(world_size):
        dealer.set_batch_ms(rank, batch_ms)
    return dealer


def _finish(dealer: Dealer, rank: int, plans: list[EpochPlan]) -> bool:
    moved_on = False
    for each in plans:
        moved_on |= dealer.complete(rank, each.epoch, each.size)
    return moved_on


def test_rank_of_unknown_speed_gets_a_probe() -> None:
    dealer = _dealer()
    assert dealer.deal(0, round_batches=10) == [plan(0, 0, PROBE_BATCHES * BATCH_SIZE)]
    assert dealer.deal(1, round_batches=10) == [plan(0, 8, PROBE_BATCHES * BATCH_SIZE)]
    assert not dealer.all_measured


def test_rank_gets_a_rounds_worth_once_its_speed_is_known() -> None:
    dealer = _dealer(batch_ms=100.0)
    assert dealer.all_measured
    assert dealer.batch_ms(0) == 100.0
    assert dealer.deal(0, round_batches=10) == [plan(0, 0, 10 * BATCH_SIZE)]


def test_chunk_of_tiny_batches_lasts_long_enough_for_the_next_to_arrive() -> None:
    dealer = _dealer(epoch_size=100_000, batch_ms=0.1)
    (dealt,) = dealer.deal(0, round_batches=1)
    assert dealt.size == CHUNK_MS / 0.1 * BATCH_SIZE


@pytest.mark.parametrize(("batch_ms", "left"), [(100.0, 1), (2.0, LOW_WATER_MS / 2.0)])
def test_rank_is_dealt_more_before_it_runs_dry(batch_ms: float, left: float) -> None:
    dealer = _dealer(epoch_size=4000, batch_ms=batch_ms)
    (dealt,) = dealer.deal(0, round_batches=20)
    dealer.complete(0, 0, dealt.size - int(left + 1) * BATCH_SIZE)
    assert dealer.deal(0, round_batches=20) == []
    dealer.complete(0, 0, BATCH_SIZE)
    assert dealer.deal(0, round_batches=20) == [plan(0, dealt.size, dealt.size)]


def test_epochs_last_chunk_may_be_smaller_than_a_batch() -> None:
    dealer = _dealer(world_size=1, epoch_size=7, num_epochs=1)
    assert dealer.deal(0, round_batches=5) == [plan(0, 0, 4), plan(0, 4, 3)]


def test_rank_streams_into_the_next_epoch_up_to_the_limit() -> None:
    dealer = _dealer(epoch_size=16, overshoot=2, batch_ms=100.0)
    first = dealer.deal(0, round_batches=4)
    other = dealer.deal(1, round_batches=4)
    assert {each.epoch for each in first + other} == {0}
    while dealt := [each for each in dealer.deal(0, round_batches=4) if each.epoch == 0]:
        _finish(dealer, 0, dealt)
    _finish(dealer, 0, first)
    ahead = dealer.deal(0, round_batches=4)
    assert [each.epoch for each in ahead] == [1] * len(ahead)
    assert sum(each.size for each in ahead) <= 2 * BATCH_SIZE
    _finish(dealer, 0, ahead)
    assert dealer.deal(0, round_batches=4) == []
    assert dealer.is_idle(0)


def test_starved_rank_gets_work_when_the_epoch_moves_on() -> None:
    dealer = _dealer(epoch_size=8, overshoot=0)
    chunks = {rank: dealer.deal(rank, round_batches=1) for rank in range(2)}
    assert chunks == {0: [plan(0, 0, 4), plan(0, 4, 4)], 1: []}
    assert (dealer.starved, dealer.is_idle(1), dealer.is_idle(0)) == ((1,), True, False)
    assert not dealer.complete(0, 0, 4)
    assert dealer.deal(0, round_batches=1) == []
    assert dealer.is_idle(1)
    assert dealer.complete(0, 0, 4)
    assert dealer.current_epoch == 1
    assert dealer.deal(1, round_batches=1) == [plan(1, 0, 4), plan(1, 4, 4)]
    assert dealer.starved == (0,)


def test_rank_goes_no_further_than_one_epoch_beyond_the_lowest_that_is_in_no_average() -> None:
    dealer = _dealer(world_size=1, epoch_size=4, num_epochs=4, overshoot=5)
    dealt = dealer.deal(0, round_batches=1)
    assert dealt == [plan(0, 0, 4), plan(1, 0, 4)]
    assert _finish(dealer, 0, dealt)
    assert dealer.deal(0, round_batches=1) == []
    assert (dealer.has_unaveraged_epoch, dealer.current_epoch, list(dealer.open_epochs)) == (True, 2, [0, 1, 2, 3])
    dealer.averaged((0,))
    assert dealer.has_unaveraged_epoch
    assert dealer.deal(0, round_batches=1) == [plan(2, 0, 4)]
    dealer.averaged((1,))
    assert (dealer.has_unaveraged_epoch, list(dealer.open_epochs)) == (False, [2, 3])


def test_slow_rank_is_not_given_the_last_batches() -> None:
    dealer = _dealer(epoch_size=40, overshoot=0)
    dealer.set_batch_ms(0, 10.0)
    dealer.set_batch_ms(1, 1000.0)
    assert dealer.deal(1, round_batches=10) == []
    assert dealer.deal(0, round_batches=10) != []


def test_progress_counts_trained_samples_of_the_current_epoch() -> None:
    dealer = _dealer()
    assert dealer.current_epoch_done == 0
    dealer.deal(0, round_batches=1)
    dealer.complete(0, 0, 4)
    assert dealer.current_epoch_done == 4


def test_rank_is_told_of_epochs_that_would_pass_it_by_once() -> None:
    dealer = _dealer(epoch_size=8)
    assert dealer.deal(0, round_batches=1) == [plan(0, 0, 4), plan(0, 4, 4)]
    assert dealer.epochs_without_work(0, range(3)) == [plan(1, 0, 0), plan(2, 0, 0)]
    assert dealer.epochs_without_work(0, range(3)) == []
    assert dealer.epochs_without_work(1, range(2)) == [plan(0, 0, 0), plan(1, 0, 0)]


def test_epochs_averaged_out_of_order_are_a_fault_of_ours() -> None:
    dealer = _dealer()
    with pytest.raises(AssertionError, match="in order"):
        dealer.averaged((1,))


def test_rank_that_has_left_counts_for_nothing() -> None:
    dealer = _dealer(epoch_size=8, overshoot=0)
    dealer.set_batch_ms(0, 100.0)
    dealer.deal(0, round_batches=2)
    dealer.deal(1, round_batches=2)
    before = (dealer.all_measured, 1 in dealer.starved)
    dealer.remove(1)
    assert before == (False, True)
    assert (dealer.all_measured, 1 in dealer.starved) == (True, False)


def test_fastest_rank_is_found_again_when_it_slows_or_becomes_unknown() -> None:
    dealer = _dealer(epoch_size=40, overshoot=0)
    for rank, batch_ms in ((0, 10.0), (1, 20.0), (0, 5000.0), (0, 0.0), (0, 5000.0)):
        dealer.set_batch_ms(rank, batch_ms)
    assert dealer.deal(0, round_batches=10) == []
    assert dealer.deal(1, round_batches=10) != []


class DealerMachine(RuleBasedStateMachine):
    """Ranks train, report and are measured in any order; averages complete epochs some time after."""

    @initialize(
        world_size=st.integers(1, 4),
        epoch_size=st.integers(1, 120),
        num_epochs=st.integers(1, 4),
        overshoot=st.integers(0, 4),
        is_progressive=st.sampled_from([True, True, False]),
        shares=st.none() | st.lists(st.sampled_from([0.01, 1.0, 3.0]), min_size=4, max_size=4),
        speed_hint=st.none() | st.tuples(st.integers(0, 3), st.sampled_from([1.0, 2.5, 40.0])),
    )
    def start(
        self,
        world_size: int,
        epoch_size: int,
        num_epochs: int,
        overshoot: int,
        is_progressive: bool,
        shares: list[float] | None,
        speed_hint: tuple[int, float] | None,
    ) -> None:
        self.ranks = range(world_size)
        self.epoch_size, self.num_epochs = epoch_size, num_epochs
        self.limit = overshoot if is_progressive else 0
        self.dealer = Dealer(
            self.ranks,
            epoch_size=epoch_size,
            batch_size=BATCH_SIZE,
            num_epochs=num_epochs,
            overshoot=OvershootLimit(100, overshoot),
            is_progressive=is_progressive,
            ratios=None if shares is None else shares[:world_size],
            speed_hint=None if speed_hint is None else (speed_hint[0] % world_size, speed_hint[1]),
        )
        self.positions: set[tuple[int, int]] = set()
        self.queues: dict[int, deque[EpochPlan]] = {rank: deque() for rank in self.ranks}
        self.dealt = [0] * num_epochs
        self.trained = [0] * num_epochs
        self.ahead: dict[tuple[int, int], int] = defaultdict(int)
        for rank in self.ranks:
            self.deal(rank, 3)

    def deal(self, rank: int, round_batches: int) -> None:
        for dealt in self.dealer.deal(rank, round_batches=round_batches):
            assert dealt.size > 0
            positions = {(dealt.epoch, dealt.offset + i) for i in range(dealt.size)}
            assert not positions & self.positions, "a sample dealt twice"
            self.positions |= positions
            assert dealt.offset + dealt.size <= self.epoch_size
            assert self.dealer.current_epoch <= dealt.epoch <= self.dealer.current_epoch + 1
            assert dealt.epoch <= self.dealer.averaged_epoch + 2
            self.dealt[dealt.epoch] += dealt.size
            if dealt.epoch > self.dealer.current_epoch:
                self.ahead[rank, dealt.epoch] += dealt.size
                assert self.ahead[rank, dealt.epoch] <= self.limit * BATCH_SIZE, "beyond the overshoot limit"
            self.queues[rank].append(dealt)

    def busy(self) -> list[int]:
        return [rank for rank in self.ranks if self.queues[rank]]

    def train(self, rank: int, round_batches: int) -> None:
        """One batch; then as the coordinator does: deal to the rank, and to the starved when the epoch moved on."""
        head = self.queues[rank].popleft()
        size = min(BATCH_SIZE, head.size)
        if size < head.size:
            self.queues[rank].appendleft(plan(head.epoch, head.offset + size, head.size - size))
        self.trained[head.epoch] += size
        moved_on = self.dealer.complete(rank, head.epoch, size)
        self.deal(rank, round_batches)
        if moved_on:
            self.feed_starved(round_batches)

    def feed_starved(self, round_batches: int) -> None:
        for rank in self.dealer.starved:
            self.deal(rank, round_batches)

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), round_batches=st.integers(1, 30))
    def train_some(self, data: st.DataObject, round_batches: int) -> None:
        self.train(data.draw(st.sampled_from(self.busy())), round_batches)

    @rule(rank=st.integers(0, 3), batch_ms=st.sampled_from([0.1, 1.0, 7.0, 30.0, 400.0]))
    def measure(self, rank: int, batch_ms: float) -> None:
        self.dealer.set_batch_ms(rank % len(self.ranks), batch_ms)

    @precondition(lambda self: self.dealer.has_unaveraged_epoch)
    @rule(round_batches=st.integers(1, 30))
    def average(self, round_batches: int) -> None:
        self.dealer.averaged((self.dealer.averaged_epoch + 1,))
        self.feed_starved(round_batches)

    @invariant()
    def somebody_has_work_or_an_average_is_due(self) -> None:
        done = self.dealer.current_epoch == self.num_epochs
        assert self.busy() or self.dealer.has_unaveraged_epoch or done

    @invariant()
    def books_balance(self) -> None:
        whole = [epoch for epoch in range(self.num_epochs) if self.trained[epoch] == self.epoch_size]
        assert (
            whole == list(range(self.dealer.current_epoch)) or self.trained[self.dealer.current_epoch] < self.epoch_size
        )
        for rank in self.ranks:
            assert self.dealer.is_idle(rank) <= (not self.queues[rank])

    def teardown(self) -> None:
        """Whatever happened, the rest of the run can be trained."""
        while hasattr(self, "dealer") and (self.busy() or self.dealer.has_unaveraged_epoch):
            for rank in self.busy():
                self.train(rank, 3)
            if self.dealer.has_unaveraged_epoch:
                self.average(3)
        if hasattr(self, "dealer"):
            assert self.trained == self.dealt == [self.epoch_size] * self.num_epochs


DealerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestDealerMachine = DealerMachine.TestCase


def test_ratios_cut_an_epoch_into_slices_of_whole_batches() -> None:
    dealer = _dealer(epoch_size=45, ratios=(3, 1), batch_ms=100.0)
    assert dealer.deal(1, round_batches=10) == [plan(0, 36, 9)], "with the smaller batch at the end"
    assert dealer.deal(0, round_batches=5) == [plan(0, 0, 20)]
    _finish(dealer, 0, [plan(0, 0, 20)])
    assert dealer.deal(0, round_batches=5) == [plan(0, 20, 16)], "a round's worth at a time"
    assert not _finish(dealer, 1, [plan(0, 36, 9)])
    assert dealer.deal(1, round_batches=5) == [plan(1, 36, 8)], "its slice is done: it streams on, by the overshoot"


def test_epoch_dealt_whole_gives_each_rank_its_share_by_speed() -> None:
    dealer = _dealer(epoch_size=56, is_progressive=False)
    dealer.set_batch_ms(0, 10.0)
    dealer.set_batch_ms(1, 25.0)
    assert dealer.deal(0, round_batches=1) == [plan(0, 0, 40)]
    assert dealer.deal(1, round_batches=1) == [plan(0, 40, 16)]
    assert not _finish(dealer, 0, [plan(0, 0, 40)])
    assert dealer.deal(0, round_batches=1) == [], "none goes on before all are done"
    dealer.set_batch_ms(0, 25.0)
    assert _finish(dealer, 1, [plan(0, 40, 16)])
    assert dealer.deal(0, round_batches=1) == [plan(1, 0, 28)], "cut by speed as known then"


def test_epoch_dealt_whole_is_cut_by_the_hint_before_speeds_are_known() -> None:
    dealer = _dealer(epoch_size=56, is_progressive=False, speed_hint=(1, 2.5))
    assert dealer.deal(0, round_batches=1) == [plan(0, 0, 40)]


def test_no_more_batches_are_dealt_than_the_run_may_train() -> None:
    dealer = _dealer(max_batches=5, batch_ms=100.0)
    assert dealer.deal(0, round_batches=4) == [plan(0, 0, 16)]
    assert dealer.deal(1, round_batches=4) == [plan(0, 16, 4)]
    _finish(dealer, 0, [plan(0, 0, 16)])
    assert dealer.deal(0, round_batches=4) == []
    assert not dealer.is_exhausted
    _finish(dealer, 1, [plan(0, 16, 4)])
    assert dealer.is_exhausted


def test_what_is_left_is_dealt_though_the_fastest_rank_has_gone_on_to_the_next_epoch() -> None:
    dealer = Dealer(range(3), epoch_size=10, batch_size=1, num_epochs=2, overshoot=OvershootLimit(5, 5))
    for rank, batch_ms in ((0, 400.0), (1, 100.0), (2, 1e5)):
        dealer.set_batch_ms(rank, batch_ms)
    for _ in range(8):
        dealer.deal(1, round_batches=10)
        dealer.complete(1, 0, 1)
    assert dealer.deal(0, round_batches=5) == [plan(1, 0, 1), plan(1, 1, 1)], "the last batch is done sooner by rank 1"
    dealer.set_batch_ms(0, 1.0)
    dealer.set_batch_ms(1, 1e5)
    dealer.complete(1, 0, 1)
    assert dealer.deal(1, round_batches=5) == []
    assert dealer.deal(2, round_batches=5) == []
    dealer.complete(0, 1, 2)
    _finish(dealer, 0, dealer.deal(0, round_batches=5))
    assert dealer.deal(0, round_batches=5) == [], "it never goes back"
    assert dealer.deal(1, round_batches=5) == [plan(0, 9, 1)], "nobody is left who would take it"


@pytest.mark.parametrize(("epoch_batches", "dealt"), [(6, 0), (60, 2)])
def test_slow_rank_takes_no_more_of_the_next_epoch_than_its_part(epoch_batches: int, dealt: int) -> None:
    dealer = _dealer(epoch_size=epoch_batches * BATCH_SIZE, overshoot=1000)
    dealer.set_batch_ms(0, 100.0)
    dealer.set_batch_ms(1, 1000.0)
    while plans := [each for each in dealer.deal(0, round_batches=1) if each.epoch == 0]:
        _finish(dealer, 0, plans)
    ahead = dealer.deal(1, round_batches=1000)
    assert sum(each.size for each in ahead) == dealt * BATCH_SIZE, "the others would wait for it at that epoch's end"


def test_what_is_left_is_dealt_though_the_fastest_rank_was_refused_when_it_was_thought_slow() -> None:
    dealer = _dealer(epoch_size=9, num_epochs=1, overshoot=0)
    dealer.set_batch_ms(0, 400.0)
    dealer.set_batch_ms(1, 10.0)
    assert dealer.deal(0, round_batches=3) == []
    dealt = dealer.deal(1, round_batches=3)
    assert dealt == [plan(0, 0, 4), plan(0, 4, 4)]
    dealer.set_batch_ms(0, 0.1)
    dealer.set_batch_ms(1, 1.0)
    _finish(dealer, 1, dealt)
    assert dealer.deal(1, round_batches=3) == [plan(0, 8, 1)], "rank 0 does not ask again"


def test_rank_that_was_said_to_be_far_too_slow_for_the_epoch_is_measured_all_the_same() -> None:
    dealer = _dealer(epoch_size=400, speed_hint=(1, 10_000.0))
    assert dealer.deal(1, round_batches=10) == [plan(0, 0, BATCH_SIZE)]
    assert dealer.deal(1, round_batches=10) == [], "no more than it takes to know it"
    dealer.complete(1, 0, BATCH_SIZE)
    assert dealer.deal(1, round_batches=10) == [plan(0, BATCH_SIZE, BATCH_SIZE)], "the first batch tells no speed"
    dealer.complete(1, 0, BATCH_SIZE)
    dealer.set_batch_ms(0, 10.0)
    dealer.set_batch_ms(1, 10.0)
    assert dealer.deal(1, round_batches=10) == [plan(0, 2 * BATCH_SIZE, 10 * BATCH_SIZE)]
