"""Training goes on while the CPU averages, and nothing of it is lost: the recorded order, replayed in float64."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from flodl_core import ApplyPolicy, AverageBackend, DdpBuilder, WorkerSpec
from tests.flodl_core.law_checks import check_accounts, param_names_of
from tests.flodl_core.replay import Retrained, Walk
from tests.flodl_core.training import (
    LOCAL_POLICIES,
    Outcome,
    Samples,
    as_vector,
    configure,
    every_local_way,
    mean_squared_error,
    mlp,
    numbered_samples,
)
from tests.flodl_core.witness import Witness

SEED = 11
BATCH_SIZE = 8
EPOCH_SIZE = 100 * BATCH_SIZE + 3
UNLIKE = (WorkerSpec("cpu"), WorkerSpec("cpu", 1.5), WorkerSpec("cpu", 2.5))
TOLERANCE = 1e-10
"""Relative. The engine computes in float64 here: it may differ from the oracle by the order of its sums alone."""

each_local_policy = pytest.mark.parametrize("policy", LOCAL_POLICIES)


def wide_mlp(device: torch.device) -> nn.Module:
    return mlp(device).double()


def wide_samples(num_samples: int) -> Samples:
    inputs, targets, numbers = numbered_samples(num_samples)
    return inputs.double(), targets.double(), numbers


def plain(params: Any) -> Optimizer:
    return SGD(params, lr=0.02)


def momentum(params: Any) -> Optimizer:
    return SGD(params, lr=0.01, momentum=0.9)


def adam(params: Any) -> Optimizer:
    return Adam(params, lr=0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayable:
    """A run, and all that it takes to replay it."""

    outcome: Outcome
    witness: Witness
    samples: Samples
    optim_factory: Callable[[Any], Optimizer]

    def replay(self, *, keeps: bool = True) -> tuple[Tensor, Walk]:
        """The oracle's parameters at the end, as one vector, and how it came to them."""
        torch.manual_seed(SEED)
        model = wide_mlp(torch.device("cpu"))
        stories = self.witness.stories
        sides = {
            rank: Retrained(model, self.samples, mean_squared_error, self.optim_factory, keeps=keeps)
            for rank in stories
        }
        walk = Walk(stories=stories, sides=sides, param_names=param_names_of(model)).run()
        last = walk.averages[max(walk.averages)].mean
        return torch.cat([last[name].reshape(-1) for name, _ in model.named_parameters()]), walk

    def error_against(self, vector: Tensor) -> float:
        """Relative, of the parameters as a whole."""
        return float((as_vector(self.outcome.state) - vector).norm() / vector.norm())


def run_watched(
    *,
    policy: ApplyPolicy,
    backend: AverageBackend = AverageBackend.CPU,
    optim_factory: Callable[[Any], Optimizer] = plain,
    hold: int = 0,
    poison: Callable[[int, int], bool] = lambda rank, batch: False,
    tune: Callable[[DdpBuilder], object] = lambda builder: None,
) -> Replayable:
    """Three unlike workers over two epochs; ``hold``: batches that go by before each average begins."""
    samples = wide_samples(EPOCH_SIZE)
    witness = Witness(optim_factory=optim_factory, poison=poison)
    builder = configure(
        samples,
        policy=policy,
        backend=backend,
        devices=UNLIKE,
        train_fn=witness.train_fn,
        model_factory=wide_mlp,
        optim_factory=witness.make_optimizer,
        batch_size=BATCH_SIZE,
        num_epochs=2,
    )
    tune(builder.anchor(2).seed(SEED))
    with witness.averaging_held(num_batches=hold, epoch_size=EPOCH_SIZE, batch_size=BATCH_SIZE):
        outcome = witness.watch(builder)
    return Replayable(outcome=outcome, witness=witness, samples=samples, optim_factory=optim_factory)


def check_replay(run: Replayable) -> Walk:
    vector, walk = run.replay()
    assert run.error_against(vector) < TOLERANCE
    check_accounts(run.outcome, run.witness, walk)
    return walk


@every_local_way
def test_run_ends_where_its_replay_does(policy: ApplyPolicy, backend: AverageBackend) -> None:
    run = run_watched(policy=policy, backend=backend, optim_factory=momentum)
    walk = check_replay(run)
    assert len(walk.averages) >= 2
    if backend is AverageBackend.GLOO:
        assert walk.num_overlapped == 0
    is_beside = backend is AverageBackend.CPU
    assert all((taken_ms > 0) == is_beside for taken_ms in run.witness.taken_ms), "the average's cost is measured"


@each_local_policy
@pytest.mark.parametrize("optim_factory", [plain, momentum, adam])
def test_what_is_trained_during_an_average_is_kept(
    policy: ApplyPolicy, optim_factory: Callable[[Any], Optimizer]
) -> None:
    run = run_watched(policy=policy, optim_factory=optim_factory, hold=4)
    walk = check_replay(run)
    assert run.witness.num_holds > 0
    assert walk.num_overlapped >= 4 * run.witness.num_holds
    overwritten, _ = run.replay(keeps=False)
    assert run.error_against(overwritten) > 1e-4, "an oracle that overwrites must not agree"


@every_local_way
@pytest.mark.parametrize("hold", [0, 3])
def test_rank_that_is_not_finite_starts_again_from_the_average(
    policy: ApplyPolicy, backend: AverageBackend, hold: int
) -> None:
    run = run_watched(
        policy=policy,
        backend=backend,
        optim_factory=momentum,
        hold=hold if backend is AverageBackend.CPU else 0,
        poison=lambda rank, batch: (rank, batch) == (1, 5),
    )
    walk = check_replay(run)
    assert [average.excluded for average in walk.averages.values() if average.excluded] == [(1,)]
    assert walk.num_discarded > 0
