"""Law 2: the average is sum(n_r x theta_r) / sum(n_r), whichever way it is computed."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flodl_core.errors import NonFiniteError
from flodl_core.meetings import Contribution, GradientMeeting
from flodl_core.replica import Replica
from flodl_core.tally import tally
from tests.flodl_core.average_checks import (
    check_rank_that_is_not_finite,
    check_rank_without_samples,
    check_weighted_mean,
    check_weights_of_ledgers,
)
from tests.flodl_core.averaging_ways import (
    MODELS,
    Average,
    each_way,
    entry,
    in_place,
    named_tensors,
    replicas_of,
    through_cpu,
)
from tests.flodl_core.models import Tied, ZooModel


@each_way
@given(
    weights=st.lists(st.sampled_from([0, 1, 3, 64, 10**6]), min_size=1, max_size=6),
    make=st.sampled_from(MODELS),
)
def test_average_is_the_weighted_mean(
    average: Average,
    weights: list[int],
    make: Callable[[], nn.Module],
) -> None:
    check_weighted_mean(average, weights, make)


@given(weights=st.lists(st.integers(0, 100), min_size=1, max_size=5), make=st.sampled_from(MODELS))
def test_both_backends_give_the_same_bits(weights: list[int], make: Callable[[], nn.Module]) -> None:
    entries = [entry(rank, weight) for rank, weight in enumerate(weights)]
    first, second = replicas_of(make, len(weights)), replicas_of(make, len(weights))
    through_cpu(first, entries)
    in_place(second, entries)
    for mine, theirs in zip(first, second, strict=True):
        for name, tensor in named_tensors(mine.model).items():
            assert torch.equal(tensor, named_tensors(theirs.model)[name]), name


@each_way
def test_all_replicas_are_bitwise_equal_after_an_average(
    average: Average,
) -> None:
    replicas = replicas_of(ZooModel, 3)
    average(replicas, [entry(0, 5), entry(1, 0), entry(2, 7)])
    for replica in replicas[1:]:
        for name, tensor in named_tensors(replica.model).items():
            assert torch.equal(tensor, named_tensors(replicas[0].model)[name]), name


@each_way
@given(batches=st.lists(st.lists(st.integers(1, 64), max_size=5), min_size=1, max_size=5))
def test_weights_are_samples_whatever_the_batches(average: Average, batches: list[list[int]]) -> None:
    check_weights_of_ledgers(average, batches)


@each_way
def test_rank_without_samples_never_enters_the_sum(average: Average) -> None:
    check_rank_without_samples(average)


@each_way
def test_replica_that_is_not_finite_is_left_out_and_takes_the_mean(average: Average) -> None:
    check_rank_that_is_not_finite(average)


def test_average_without_a_finite_replica_is_refused() -> None:
    entries = [entry(0, 1, is_finite=False), entry(1, 1, is_finite=False)]
    assert tally(entries, epochs=(), epoch_size=1) is None
    with pytest.raises(NonFiniteError, match="no replica is finite"):
        in_place(replicas_of(Tied, 2), entries)


# Gradients


def test_gradients_are_averaged_by_samples_and_missing_ones_count_as_zero() -> None:
    replicas = [Replica(nn.Linear(2, 1)) for _ in range(3)]
    for replica in replicas[:2]:
        replica.trainable[0].grad = torch.tensor([[1.0, 2.0]])
    replicas[1].trainable[0].grad = None
    contributions = {
        rank: Contribution(entry=entry(rank, samples), state=replicas[rank].gradients())
        for rank, samples in enumerate([3, 1, 0])
    }
    result = GradientMeeting(world_size=3)(contributions, dict.fromkeys(range(3), 0.0))
    assert result.has_grad == (True, False)
    for replica in replicas:
        replica.take_gradients(result.has_grad)
        weight, bias = replica.trainable
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, torch.tensor([[0.75, 1.5]]))
        assert bias.grad is None
