"""The one pass over the parameters: what it may not depend on, and what comes out of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flodl_core.averaging import Averager
from flodl_core.drift import Drift
from flodl_core.outer import OuterOptimizer, OuterOptions
from flodl_core.replica import ReplicaState
from flodl_core.tally import Tally
from tests.flodl_core.averaging_ways import entry, settle

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WHOLE = 1 << 20
"""A block that holds all of the test's parameters."""


def make_states(
    sizes: Sequence[int], world_size: int, *, dtypes: Sequence[torch.dtype] = (torch.float32,), seed: int = 0
) -> dict[int, ReplicaState]:
    generator = torch.Generator().manual_seed(seed)

    def flats() -> tuple[Tensor, ...]:
        return tuple(
            torch.randn(size, generator=generator).to(dtype) for size, dtype in zip(sizes, dtypes, strict=True)
        )

    return {
        rank: ReplicaState(params=flats(), floating=(), integer=torch.tensor([rank]), has_grad=(rank == 0, False))
        for rank in range(world_size)
    }


def copy_of(states: dict[int, ReplicaState]) -> dict[int, ReplicaState]:
    return {rank: state.clone() for rank, state in states.items()}


def terms_of(weights: Sequence[int], *, broken: Sequence[int] = ()) -> Tally:
    return settle([entry(rank, weight, is_finite=rank not in broken) for rank, weight in enumerate(weights)])


def summed_at_once(states: dict[int, ReplicaState], terms: Tally) -> list[Tensor]:
    """The sum over whole tensors, in rank order."""
    total = sum(terms.weights.values())
    means = []
    for group in range(len(states[0].params)):
        flats = [states[rank].params[group] for rank in terms.weights]
        wide = torch.promote_types(flats[0].dtype, torch.float32)
        mean = flats[0].to(wide)
        if len(flats) > 1:
            mean = mean * (next(iter(terms.weights.values())) / total)
            for flat, weight in zip(flats[1:], list(terms.weights.values())[1:], strict=True):
                mean = torch.add(mean, flat.to(wide), alpha=weight / total)
        means.append(mean)
    return means


def exact_drift(states: dict[int, ReplicaState], means: Sequence[Tensor], ranks: Sequence[int]) -> Drift:
    """In float64, over whole vectors."""
    after = torch.cat([mean.double() for mean in means])
    divergence, cosine, magnitude = {}, {}, {}
    for rank in ranks:
        before = torch.cat([flat.double() for flat in states[rank].params])
        divergence[rank] = float((before - after).norm() / after.norm())
        cosine[rank] = float(torch.dot(before, after) / before.norm() / after.norm())
        magnitude[rank] = float(before.norm() - after.norm())
    return Drift(divergence=divergence, cosine=cosine, magnitude=magnitude)


def check_drift(actual: Drift, expected: Drift) -> None:
    assert actual.divergence == pytest.approx(expected.divergence, rel=1e-5)
    assert actual.cosine == pytest.approx(expected.cosine, abs=1e-5)
    assert actual.magnitude == pytest.approx(expected.magnitude, abs=1e-4)


WEIGHTS = st.lists(st.sampled_from([0, 1, 3, 64, 10**6]), min_size=1, max_size=5)
SIZES = st.lists(st.integers(1, 200), min_size=1, max_size=4)


@given(weights=WEIGHTS, sizes=SIZES, block=st.integers(1, 250), threads=st.integers(1, 2), seed=st.integers(0, 99))
def test_no_bit_depends_on_blocks_backend_or_threads(
    weights: list[int], sizes: list[int], block: int, threads: int, seed: int
) -> None:
    dtypes = DTYPES[: len(sizes)]
    states, terms = make_states(sizes, len(weights), dtypes=dtypes, seed=seed), terms_of(weights)
    expected = summed_at_once(states, terms)
    in_place, gradients = copy_of(states), copy_of(states)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        plain = [flat.clone() for flat in Averager(block=block).average(states, terms).params]
        measured, drift = Averager(block=block).consensus(states, terms)
        drift_in_place = Averager(block=block).consensus_in_place(in_place, terms)
        Averager(block=block).average_in_place(gradients, terms)
    finally:
        torch.set_num_threads(before)
    for group, mean in enumerate(expected):
        assert torch.equal(plain[group], mean)
        assert torch.equal(measured.params[group], mean)
        for rank in states:
            assert torch.equal(in_place[rank].params[group], mean.to(dtypes[group]))
            assert torch.equal(gradients[rank].params[group], mean.to(dtypes[group]))
    # a sum of squares may depend on how its block lies in memory; no more than by rounding
    for measured_drift in (drift, drift_in_place):
        check_drift(measured_drift, exact_drift(states, expected, range(len(weights))))


def test_parameters_beyond_one_block_of_the_real_size() -> None:
    # the last block is a partial one
    states, terms = make_states([300_001], 2), terms_of([2, 1])
    expected = summed_at_once(states, terms)
    before = copy_of(states)
    drift = Averager().consensus_in_place(states, terms)
    assert all(torch.equal(state.params[0], expected[0]) for state in states.values())
    check_drift(drift, exact_drift(before, expected, [0, 1]))


def test_snapshots_are_only_read() -> None:
    states = make_states([50, 60], 3, dtypes=DTYPES[:2])
    before = copy_of(states)
    Averager(block=16).consensus(states, terms_of([1, 2, 3]))
    for rank, state in states.items():
        assert all(torch.equal(mine, old) for mine, old in zip(state.tensors(), before[rank].tensors(), strict=True))


def test_rank_that_is_not_finite_is_not_measured_but_takes_the_mean() -> None:
    states = make_states([40], 3)
    states[1].params[0][5] = math.nan
    terms = terms_of([2, 9, 6], broken=[1])
    expected = summed_at_once(states, terms)
    drift = Averager(block=16).consensus_in_place(states, terms)
    assert set(drift.divergence) == {0, 2}
    assert all(torch.equal(state.params[0], expected[0]) for state in states.values())
    assert [state.integer.item() for state in states.values()] == [2, 2, 2]


def test_rank_that_trained_nothing_is_measured_against_the_mean_of_the_others() -> None:
    states = make_states([40], 2)
    mean = states[1].params[0].clone()
    drift = Averager(block=16).consensus_in_place(states, terms_of([0, 5]))
    assert drift.divergence[1] == 0.0
    assert drift.divergence[0] > 0.5
    assert torch.equal(states[0].params[0], mean)


def test_half_precision_is_summed_in_single_precision() -> None:
    # in bfloat16, 256 + 1 is 256
    values = [256.0, 1.0, 1.0, 1.0]
    states = {
        rank: ReplicaState(
            params=(torch.full((8,), value, dtype=torch.bfloat16),),
            floating=(torch.full((2,), value, dtype=torch.bfloat16),),
            integer=torch.empty(0, dtype=torch.int64),
        )
        for rank, value in enumerate(values)
    }
    mean = Averager().average(states, terms_of([1, 1, 1, 1]))
    assert mean.params[0].dtype == mean.floating[0].dtype == torch.float32
    assert mean.params[0].tolist() == [64.75] * 8
    assert mean.floating[0].tolist() == [64.75] * 2


def test_gradient_counts_where_any_averaged_rank_has_one() -> None:
    states = make_states([8], 2)
    assert Averager().average_in_place(copy_of(states), terms_of([1, 1])) == (True, False)
    assert Averager().average_in_place(states, terms_of([0, 1])) == (False, False)


def test_buffers_are_reused() -> None:
    averager = Averager()
    states = make_states([30], 2)
    first, _ = averager.consensus(states, terms_of([1, 1]))
    second, _ = averager.consensus(states, terms_of([1, 3]))
    assert [t.data_ptr() for t in first.tensors()] == [t.data_ptr() for t in second.tensors()]


# With an outer optimizer


@given(weights=WEIGHTS, sizes=SIZES, block=st.integers(1, 250), seed=st.integers(0, 99))
def test_outer_step_depends_on_neither_blocks_nor_backend(
    weights: list[int], sizes: list[int], block: int, seed: int
) -> None:
    dtypes = DTYPES[: len(sizes)]
    rounds = [make_states(sizes, len(weights), dtypes=dtypes, seed=seed + step) for step in range(3)]
    start = make_states(sizes, 1, dtypes=dtypes, seed=500)[0].params
    whole = Averager(OuterOptimizer(OuterOptions(), start), block=WHOLE)
    cut = Averager(OuterOptimizer(OuterOptions(), start), block=block)
    in_place = Averager(OuterOptimizer(OuterOptions(), start), block=block)
    for states in rounds:
        terms = terms_of(weights)
        expected, _ = whole.consensus(states, terms)
        actual, drift = cut.consensus(states, terms)
        plain = Averager().average(states, terms).params
        check_drift(drift, exact_drift(states, plain, range(len(weights))))  # of the mean, not of what becomes of it
        mine = copy_of(states)
        in_place.consensus_in_place(mine, terms)
        for group, flat in enumerate(expected.params):
            assert torch.equal(actual.params[group], flat)
            for state in mine.values():
                assert torch.equal(state.params[group], flat.to(dtypes[group]))


def test_rank_that_was_left_out_takes_the_consensus_too() -> None:
    start = torch.zeros(6)
    states = {
        rank: ReplicaState(
            params=(torch.full((6,), value),), floating=(torch.full((1,), value),), integer=torch.tensor([rank])
        )
        for rank, value in enumerate([1.0, math.nan, 3.0])
    }
    outer = OuterOptimizer(OuterOptions(lr=0.5, momentum=0.0, nesterov=False), [start])
    Averager(outer).consensus_in_place(states, terms_of([1, 1, 1], broken=[1]))
    for state in states.values():
        assert state.params[0].tolist() == [1.0] * 6  # half way from 0 to the mean, 2
        assert state.floating[0].tolist() == [2.0]  # buffers are plain means


def test_average_without_the_outer_optimizer_leaves_its_state_alone() -> None:
    outer = OuterOptimizer(OuterOptions(), [torch.zeros(30)])
    averager, states = Averager(outer), make_states([30], 2)
    mean = averager.average(states, terms_of([1, 1]))
    assert torch.equal(mean.params[0], summed_at_once(states, terms_of([1, 1]))[0])
    assert not outer.state().consensus[0].any()
