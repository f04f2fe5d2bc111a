"""Rows that wait: nothing but density is lost, and only when there are too many."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core import EpochEnded, StepWindow, SyncEvent, Throttled
from flodl_core.idle_time import IdleMs
from flows.backlog import Backlog, Item, merge_neighbours, merge_steps, merge_syncs
from tests.flows.engine_events import STEP, SYNC


def steps(items: list[Item], rank: int) -> list[StepWindow]:
    return [item for item in items if isinstance(item, StepWindow) and item.rank == rank]


def test_below_the_limit_everything_stays_in_order() -> None:
    backlog = Backlog(limit=10)
    items = [replace(STEP, time_s=float(number)) for number in range(10)]
    backlog.extend(items)
    assert len(backlog) == 10
    assert backlog.take(4) == items[:4]
    assert backlog.take(100) == items[4:]
    assert (len(backlog), backlog.num_merged) == (0, 0)


def test_above_the_limit_neighbours_become_one() -> None:
    backlog = Backlog(limit=10)
    backlog.extend([replace(STEP, time_s=float(number), rank=number % 2) for number in range(12)])
    assert (len(backlog), backlog.num_merged) == (6, 6)
    kept = backlog.take(100)
    assert [item.time_s for item in kept] == [2.0, 3.0, 6.0, 7.0, 10.0, 11.0]


def test_two_windows_are_as_one_that_was_never_cut() -> None:
    first = replace(STEP, loss=1.0, num_samples=10, num_batches=1, busy_ms=100.0, global_step=5)
    second = replace(
        first, loss=4.0, num_samples=20, num_batches=2, busy_ms=50.0, global_step=9, time_s=2.0, start_s=1.1, end_s=1.9
    )
    whole = merge_steps(first, second)
    assert whole.loss == pytest.approx(3.0)
    assert replace(whole, loss=4.0) == replace(
        second,
        num_samples=30,
        num_batches=3,
        busy_ms=150.0,
        samples_per_s=200.0,
        start_s=first.start_s,
        idle=IdleMs(sync=6.0, wait=40.0),
    )


def test_a_loss_that_is_not_finite_is_not_hidden() -> None:
    assert math.isnan(merge_steps(replace(STEP, loss=math.nan), STEP).loss)


def test_windows_of_different_epochs_and_ranks_stay_apart() -> None:
    items: list[Item] = [STEP, replace(STEP, rank=1), replace(STEP, epoch=1), replace(STEP, rank=1, epoch=1)]
    assert merge_neighbours(items) == items


def test_two_averages_add_up() -> None:
    first = replace(
        SYNC,
        wait_ms={0: 1.0},
        weights={0: 8, 1: 8},
        divergence={0: 0.5, 1: 0.1},
        cosine={0: 0.9, 1: 0.99},
        magnitude={0: -2.0, 1: 0.1},
        excluded=(2,),
    )
    second = replace(
        SYNC,
        round=9,
        wait_ms={0: 2.0, 1: 3.0},
        weights={0: 4},
        divergence={0: 0.2},
        cosine={0: 0.95},
        magnitude={0: 1.0},
        excluded=(1,),
    )
    assert merge_syncs(first, second) == replace(
        second,
        num_syncs=2,
        duration_ms=2 * SYNC.duration_ms,
        wait_ms={0: 3.0, 1: 3.0},
        weights={0: 12, 1: 8},
        divergence={0: 0.5, 1: 0.1},
        cosine={0: 0.9, 1: 0.99},
        magnitude={0: -2.0, 1: 0.1},
        excluded=(1, 2),
    )


def test_a_divergence_that_is_not_a_number_is_not_hidden() -> None:
    for first, second in ((math.nan, 0.5), (0.5, math.nan)):
        merged = merge_syncs(replace(SYNC, divergence={0: first}), replace(SYNC, divergence={0: second}))
        assert math.isnan(merged.divergence[0])


def test_an_average_that_completed_an_epoch_stays_as_it_is() -> None:
    closing = replace(SYNC, epoch=3)
    items: list[Item] = [closing, closing]
    assert merge_neighbours(items) == items


def test_what_cannot_be_merged_is_kept_whatever_the_limit() -> None:
    backlog = Backlog(limit=5)
    events = [Throttled(time_s=float(number), rank=0, round=1, num_batches_ahead=3) for number in range(50)]
    for event in events:
        backlog.extend([event])
    assert backlog.take(100) == events
    assert backlog.num_merged == 0


@given(
    st.lists(
        st.one_of(
            st.builds(
                lambda rank, epoch, samples: replace(STEP, rank=rank, epoch=epoch, num_samples=samples),
                st.integers(0, 2),
                st.integers(0, 2),
                st.integers(1, 9),
            ),
            st.builds(lambda epoch: replace(SYNC, epoch=epoch), st.sampled_from([None, 0])),
            st.just(EpochEnded(time_s=0.0, epoch=0, num_samples=1, global_step=1)),
        ),
        max_size=200,
    ),
    st.integers(1, 20),
)
def test_only_density_is_lost(items: list[Item], limit: int) -> None:
    backlog = Backlog(limit=limit)
    for place in range(0, len(items), 7):
        backlog.extend(items[place : place + 7])
    kept = backlog.take(10**6)
    assert len(kept) + backlog.num_merged == len(items)
    for rank in range(3):
        before, after = steps(items, rank), steps(kept, rank)
        for epoch in range(3):
            assert sum(step.num_samples for step in before if step.epoch == epoch) == sum(
                step.num_samples for step in after if step.epoch == epoch
            )

    def num_syncs(found: list[Item]) -> int:
        return sum(item.num_syncs for item in found if isinstance(item, SyncEvent))

    assert num_syncs(kept) == num_syncs(items)
    others = [item for item in items if not isinstance(item, StepWindow | SyncEvent)]
    assert [item for item in kept if not isinstance(item, StepWindow | SyncEvent)] == others
