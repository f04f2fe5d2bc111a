"""Law 2 in the small: what each way to average makes of parameters and buffers.

Each check raises ``AssertionError`` where the law is broken; ``test_mutations_of_averages.py`` shows that it does.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from flodl_core.meetings import MeetingResult
from flodl_core.tally import Tally
from flodl_core.worker_ledger import WorkerLedger
from tests.flodl_core.averaging_ways import Average, check_against, entry, oracle, replicas_of
from tests.flodl_core.models import Frozen, Masked, ZooModel


def check_weighted_mean(average: Average, weights: Sequence[int], make: Callable[[], nn.Module]) -> None:
    """All replicas become the mean in float64, but for the last rounding."""
    replicas = replicas_of(make, len(weights))
    expected = oracle([replica.model for replica in replicas], weights)
    average(replicas, [entry(rank, weight) for rank, weight in enumerate(weights)])
    for replica in replicas:
        check_against(replica.model, expected)


def check_weights_of_ledgers(average: Average, batches: Sequence[Sequence[int]]) -> None:
    """What ranks enter with after batches of these sizes makes the mean by samples."""
    replicas = replicas_of(ZooModel, len(batches))
    expected = oracle([replica.model for replica in replicas], [sum(sizes) for sizes in batches])
    ledgers = [WorkerLedger(rank) for rank in range(len(batches))]
    for ledger, sizes in zip(ledgers, batches, strict=True):
        for size in sizes:
            ledger.record(round_=0, epoch=0, num_samples=size, is_full=True, busy_ms=1.0, start_s=0.0, end_s=0.0)
    average(replicas, [ledger.entry(round_=0) for ledger in ledgers])
    for replica in replicas:
        check_against(replica.model, expected)


def check_rank_without_samples(average: Average) -> None:
    """It never enters the sum: infinity times zero would be NaN, and its own flag is of no use for what is huge."""
    replicas = replicas_of(ZooModel, 2)
    expected = oracle([replica.model for replica in replicas], [4, 0])
    with torch.no_grad():
        next(replicas[1].model.parameters()).fill_(torch.inf)
    average(replicas, [entry(0, 4), entry(1, 0)])
    check_against(replicas[1].model, expected)


def check_rank_that_is_not_finite(average: Average) -> None:
    """It is left out, named, and takes the mean of the others."""
    replicas = replicas_of(ZooModel, 3)
    expected = oracle([replica.model for replica in replicas], [2, 0, 6])
    with torch.no_grad():
        next(replicas[1].model.parameters()).fill_(torch.nan)
    entries = [entry(0, 2), entry(1, 4, is_finite=replicas[1].state().is_finite()), entry(2, 6)]
    assert not entries[1].is_finite
    result = average(replicas, entries)
    assert isinstance(result, Tally | MeetingResult)
    assert result.excluded == (1,)
    for replica in replicas:
        check_against(replica.model, expected)


# Buffers


class Scaled(nn.Module):
    """A floating buffer that training does not move."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.ones(64))


def check_integer_buffers(average: Average) -> None:
    """They come from the rank that trained most, the lowest of equals."""
    for weights, most in (((5, 9, 9), 1), ((3, 1, 9), 2)):
        replicas = replicas_of(ZooModel, 3)
        average(replicas, [entry(rank, weight) for rank, weight in enumerate(weights)])
        for replica in replicas:
            assert replica.model.get_buffer("norm.num_batches_tracked").item() == most + 1  # as it was on that rank


def check_mask(average: Average) -> None:
    """A mask of minus infinity stays, and makes nothing else of it infinite."""
    replicas = replicas_of(Masked, 3)
    mask = replicas[0].model.get_buffer("mask").clone()
    assert torch.isinf(mask).any()
    average(replicas, [entry(0, 1), entry(1, 2), entry(2, 4)])
    for replica in replicas:
        assert torch.equal(replica.model.get_buffer("mask"), mask)
        assert all(torch.isfinite(param).all() for param in replica.model.parameters())


def check_equal_buffers(average: Average) -> None:
    """What is the same on all ranks stays bit by bit, though a sum of its shares would round it."""
    same = torch.rand(64, generator=torch.Generator().manual_seed(5))
    replicas = replicas_of(Scaled, 3)
    for replica in replicas:
        replica.model.get_buffer("scale").copy_(same)
    average(replicas, [entry(0, 1), entry(1, 2), entry(2, 4)])
    for replica in replicas:
        assert torch.equal(replica.model.get_buffer("scale"), same)


# Parameters that are not averaged, or not twice


def check_frozen(average: Average) -> None:
    """Frozen parameters are not touched, whatever they are."""
    replicas = replicas_of(Frozen, 2)
    with torch.no_grad():
        replicas[1].model.get_parameter("backbone.weight").fill_(7.0)
    frozen = replicas[0].model.get_parameter("backbone.weight").clone()
    average(replicas, [entry(0, 1), entry(1, 1)])
    assert torch.equal(replicas[0].model.get_parameter("backbone.weight"), frozen)
    assert (replicas[1].model.get_parameter("backbone.weight") == 7.0).all()
