"""Law 2 in the small: replicas that have drifted apart, the ways to average them, and the mean in float64."""

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from flodl_core.averaging import Averager
from flodl_core.meetings import Contribution, MeetingResult, ParameterMeeting
from flodl_core.messages import Averaged, Entry
from flodl_core.replica import Replica
from flodl_core.tally import Tally, tally
from tests.flodl_core.models import FloatingBuffers, Frozen, Masked, MixedTypes, Tied, ZooModel

SUM_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-6, torch.float16: 1e-6}
"""Relative and absolute, of values near one: sums run in float32, and of float64 in float64."""
ROUNDING = {torch.float64: 0.0, torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Relative: a short type is rounded once, at the end. A sum that ran in it would be off by more."""


def entry(
    rank: int,
    num_samples: int,
    *,
    total_batches: int = 1,
    completed: dict[int, int] | None = None,
    is_finite: bool = True,
) -> Entry:
    return Entry(
        rank=rank,
        round=0,
        num_samples=num_samples,
        total_batches=total_batches,
        completed=completed or {},
        is_finite=is_finite,
    )


def settle(entries: Sequence[Entry]) -> Tally:
    terms = tally(entries, epochs=(), epoch_size=1)
    assert terms is not None
    return terms


def randomise(model: nn.Module, seed: int) -> None:
    """Other values in every parameter, and in every buffer that is meant to move."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator))
        for name, buffer in model.named_buffers():
            if name.endswith("mask"):
                continue
            if buffer.is_floating_point():
                buffer.copy_(torch.rand(buffer.shape, generator=generator))
            elif not buffer.is_complex():
                buffer.fill_(seed + 1)


def replicas_of(make: Callable[[], nn.Module], world_size: int) -> list[Replica]:
    """Replicas of one model that have drifted apart, but for what is frozen."""
    first = make()
    randomise(first, 99)
    replicas = []
    for rank in range(world_size):
        model = copy.deepcopy(first)
        frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
        randomise(model, rank)
        with torch.no_grad():
            for name, value in frozen.items():
                model.get_parameter(name).copy_(value)
        replicas.append(Replica(model))
    return replicas


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def oracle(models: Sequence[nn.Module], weights: Sequence[int]) -> dict[str, Tensor]:
    """The mean in float64, from the models' own tensors. Weights of all zeros: the lowest rank."""
    used = weights if any(weights) else [1] + [0] * (len(weights) - 1)
    return {
        name: sum(
            (named_tensors(model)[name].to(torch.float64) * w for model, w in zip(models, used, strict=True) if w),
            start=torch.zeros(()),
        )
        / sum(used)
        for name, tensor in named_tensors(models[0]).items()
        if tensor.is_floating_point() and not name.endswith("mask")
    }


def check_against(model: nn.Module, expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        actual = named_tensors(model)[name]
        tolerance = SUM_TOLERANCE[actual.dtype]
        rtol = tolerance + ROUNDING[actual.dtype]
        torch.testing.assert_close(actual.to(torch.float64), value, rtol=rtol, atol=tolerance, msg=name)


# The ways to average


def through_cpu(replicas: Sequence[Replica], entries: Sequence[Entry]) -> Tally:
    """Snapshots are handed in, the mean is computed elsewhere, each replica merges it."""
    terms = settle(entries)
    snapshots = {rank: replica.state().clone() for rank, replica in enumerate(replicas)}
    mean = Averager().average(snapshots, terms)
    for rank, replica in enumerate(replicas):
        replica.merge(mean, snapshots[rank], has_trained=False)
    return terms


def in_place(replicas: Sequence[Replica], entries: Sequence[Entry]) -> MeetingResult:
    """The last to arrive at the rendezvous averages for all."""
    posted: list[Averaged] = []
    meeting = ParameterMeeting(epoch_size=1, num_epochs=1, keeps_epoch=lambda epoch: False, post=posted.append)
    contributions = {e.rank: Contribution(entry=e, state=replicas[e.rank].state()) for e in entries}
    result = meeting(contributions, {e.rank: 0.0 for e in entries})
    for replica in replicas:
        replica.take_buffers()
    return result


Average = Callable[[Sequence[Replica], Sequence[Entry]], object]
each_way = pytest.mark.parametrize("average", [through_cpu, in_place])
MODELS: tuple[Callable[[], nn.Module], ...] = (ZooModel, MixedTypes, Tied, Frozen, Masked, FloatingBuffers)
