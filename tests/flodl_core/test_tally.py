from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from flodl_core.messages import Entry
from flodl_core.tally import Tally, tally
from tests.flodl_core.message_factories import entry


def _tally(*entries: Entry, epochs: tuple[int, ...] = (), epoch_size: int = 100) -> Tally:
    terms = tally(entries, epochs=epochs, epoch_size=epoch_size)
    assert terms is not None
    return terms


def test_ranks_weigh_what_they_trained_in_rank_order() -> None:
    terms = _tally(
        entry(2, num_samples=30, total_batches=5),
        entry(0, num_samples=10, total_batches=2),
        entry(1, num_samples=0, total_batches=4),
    )
    assert terms == Tally(
        weights={0: 10, 2: 30},
        num_samples={0: 10, 1: 0, 2: 30},
        excluded=(),
        discarded_samples=0,
        global_step=11,
        epochs=(),
        most_work=2,
    )
    assert list(terms.weights) == [0, 2]
    assert list(terms.num_samples) == [0, 1, 2]


def test_where_nobody_trained_the_lowest_finite_rank_stands_for_the_consensus() -> None:
    terms = _tally(
        entry(0, num_samples=0, is_finite=False), entry(2, num_samples=0), entry(1, num_samples=0), epochs=(0,)
    )
    assert terms.weights == {1: 1}
    assert terms.num_samples == {1: 0, 2: 0}
    assert terms.most_work == 1


def test_rank_that_is_not_finite_is_left_out_but_its_batches_and_samples_were_trained() -> None:
    terms = _tally(
        entry(0, num_samples=60, total_batches=9, completed={0: 60}, is_finite=False),
        entry(1, num_samples=40, total_batches=4, completed={0: 40}),
        epochs=(0,),
    )
    assert terms.weights == {1: 40}
    assert terms.num_samples == {1: 40}
    assert (terms.excluded, terms.discarded_samples) == ((0,), 60)
    assert terms.global_step == 13
    assert terms.epochs == (0,)
    assert terms.most_work == 1


def test_only_rank_that_trained_is_not_finite() -> None:
    terms = _tally(entry(0, num_samples=5, is_finite=False), entry(1, num_samples=0))
    assert terms.weights == {1: 1}
    assert (terms.excluded, terms.discarded_samples) == ((0,), 5)


def test_without_a_finite_rank_there_are_no_terms() -> None:
    entries = [entry(rank, is_finite=False) for rank in range(3)]
    assert tally(entries, epochs=(0,), epoch_size=1) is None


def test_epochs_complete_in_order_once_every_sample_is_in() -> None:
    def completed(*by_rank: dict[int, int]) -> tuple[int, ...]:
        entries = [entry(rank, completed=samples) for rank, samples in enumerate(by_rank)]
        return _tally(*entries, epochs=(3, 4)).epochs

    assert completed({3: 60}, {3: 39}) == ()
    assert completed({3: 60}, {3: 40, 4: 9}) == (3,)
    assert completed({3: 60, 4: 99}, {3: 40, 4: 1}) == (3, 4)
    assert completed({4: 50}, {4: 50}) == ()
    assert completed({2: 100}, {}) == ()


def test_integer_buffers_come_from_the_lowest_of_those_that_trained_most() -> None:
    assert _tally(entry(0, num_samples=3), entry(1, num_samples=7), entry(2, num_samples=7)).most_work == 1


def test_lowest_rank_with_samples_leads() -> None:
    assert _tally(entry(0, num_samples=0), entry(1), entry(2)).leader == 1
    assert _tally(entry(0, is_finite=False), entry(1, num_samples=0), entry(2, num_samples=0)).leader == 1


@st.composite
def _entries(draw: st.DrawFn) -> list[Entry]:
    return [
        entry(
            rank,
            num_samples=draw(st.integers(0, 50)),
            total_batches=draw(st.integers(0, 9)),
            completed=draw(st.dictionaries(st.integers(0, 2), st.integers(1, 100), max_size=3)),
            is_finite=draw(st.booleans()),
        )
        for rank in draw(st.sets(st.integers(0, 9), min_size=1, max_size=6))
    ]


@given(_entries(), st.randoms(use_true_random=False))
def test_terms_do_not_depend_on_the_order_of_arrival(entries: list[Entry], rng: random.Random) -> None:
    shuffled = list(entries)
    rng.shuffle(shuffled)
    assert tally(shuffled, epochs=(0, 1), epoch_size=100) == tally(entries, epochs=(0, 1), epoch_size=100)


@given(_entries())
def test_every_sample_is_in_the_average_or_discarded_and_some_rank_carries_it(entries: list[Entry]) -> None:
    terms = tally(entries, epochs=(), epoch_size=1)
    if terms is None:
        assert not any(each.is_finite for each in entries)
        return
    assert sum(terms.num_samples.values()) + terms.discarded_samples == sum(each.num_samples for each in entries)
    assert sorted([*terms.num_samples, *terms.excluded]) == sorted(each.rank for each in entries)
    assert terms.weights
    assert min(terms.weights.values()) > 0
    assert terms.most_work in terms.num_samples
