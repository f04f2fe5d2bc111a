"""Laws 5 and 7: sync equals one process on the concatenated batch, and repeats bit for bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from flodl_core import ApplyPolicy, AverageBackend, WorkerSpec
from flodl_core.data import Permutations
from tests.flodl_core.training import (
    NUM_FEATURES,
    Outcome,
    Samples,
    TrainFn,
    as_vector,
    configure,
    each_backend,
    mean_squared_error,
    mlp,
    numbered_samples,
    train,
)

NUM_EPOCHS = 3
BATCH_SIZE = 8
SEED = 7

OptimFactory = Callable[[Any], Optimizer]
ModelFactory = Callable[[torch.device], nn.Module]


def plain_sgd(params: Any) -> Optimizer:
    return SGD(params, lr=0.05)


def momentum(params: Any) -> Optimizer:
    return SGD(params, lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-3)


def adam(params: Any) -> Optimizer:
    return Adam(params, lr=0.01)


each_optimizer = pytest.mark.parametrize("optim_factory", [plain_sgd, momentum, adam])


def single_process(
    samples: Samples,
    *,
    global_batch: int,
    optim_factory: OptimFactory = momentum,
    model_factory: ModelFactory = mlp,
    train_fn: TrainFn = mean_squared_error,
    max_grad_norm: float | None = None,
    seed: int = SEED,
) -> Tensor:
    """The oracle: a plain loop over the same samples in the same order; returns the parameters as one vector."""
    torch.manual_seed(seed)
    model = model_factory(torch.device("cpu"))
    optimizer = optim_factory([param for param in model.parameters() if param.requires_grad])
    num_samples = len(samples[0])
    permutations = Permutations(seed=seed, num_samples=num_samples)
    for epoch in range(NUM_EPOCHS):
        order = permutations.indices(epoch=epoch, offset=0, size=num_samples)
        for indices in order.split(global_batch):
            optimizer.zero_grad()
            train_fn(model, tuple(tensor[indices] for tensor in samples)).backward()
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            optimizer.step()
    return torch.cat([param.detach().reshape(-1).to(torch.float64) for param in model.parameters()])


def train_sync(
    samples: Samples,
    *,
    backend: AverageBackend,
    world_size: int,
    optim_factory: OptimFactory = momentum,
    model_factory: ModelFactory = mlp,
    train_fn: TrainFn = mean_squared_error,
    max_grad_norm: float | None = None,
    seed: int = SEED,
) -> Outcome:
    builder = configure(
        samples,
        policy=ApplyPolicy.SYNC,
        backend=backend,
        devices=[WorkerSpec("cpu", 1.0 + rank) for rank in range(world_size)],  # speed must make no difference
        train_fn=train_fn,
        model_factory=model_factory,
        optim_factory=optim_factory,
        batch_size=BATCH_SIZE,
        num_epochs=NUM_EPOCHS,
    ).seed(seed)
    if max_grad_norm is not None:
        builder.max_grad_norm(max_grad_norm)
    return train(builder)


def relative_error(outcome: Outcome, expected: Tensor) -> float:
    return float((as_vector(outcome.state) - expected).norm() / expected.norm())


@each_backend
@each_optimizer
@pytest.mark.parametrize("world_size", [2, 3])
def test_sync_equals_one_process_on_the_concatenated_batch(
    optim_factory: OptimFactory, backend: AverageBackend, world_size: int
) -> None:
    # the last round holds 5 samples: split unevenly, and with more ranks than some of them have batches
    samples = numbered_samples(3 * BATCH_SIZE * world_size + 5)
    expected = single_process(samples, global_batch=world_size * BATCH_SIZE, optim_factory=optim_factory)
    outcome = train_sync(samples, backend=backend, world_size=world_size, optim_factory=optim_factory)
    assert relative_error(outcome, expected) < 1e-5


@each_backend
@pytest.mark.parametrize("num_samples", [1, 2, 3, 17, 25])
def test_sync_equals_one_process_where_ranks_have_no_samples(backend: AverageBackend, num_samples: int) -> None:
    # 17 and 25: a last round of one sample, which one rank of three trains while the others enter without weight
    samples = numbered_samples(num_samples)
    expected = single_process(samples, global_batch=3 * BATCH_SIZE)
    assert relative_error(train_sync(samples, backend=backend, world_size=3), expected) < 1e-5


@each_backend
@each_optimizer
def test_clipping_follows_the_average(optim_factory: OptimFactory, backend: AverageBackend) -> None:
    samples = numbered_samples(53)
    expected = single_process(samples, global_batch=16, optim_factory=optim_factory, max_grad_norm=0.3)
    unclipped = single_process(samples, global_batch=16, optim_factory=optim_factory)
    assert float((expected - unclipped).norm() / unclipped.norm()) > 1e-3, "the limit must matter for this test"
    outcome = train_sync(samples, backend=backend, world_size=2, optim_factory=optim_factory, max_grad_norm=0.3)
    assert relative_error(outcome, expected) < 1e-5


class Branches(nn.Module):
    """A layer that only samples with a positive first feature reach, one at a time so that others leave it out."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(NUM_FEATURES, 1)
        self.sometimes = nn.Linear(NUM_FEATURES, 1)
        self.never = nn.Linear(NUM_FEATURES, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.always(inputs)
        chosen = inputs[:, 0] > 0.6
        if chosen.any():
            out = out + chosen.unsqueeze(1) * self.sometimes(inputs)
        return out


def branches(device: torch.device) -> nn.Module:
    return Branches().to(device)


@each_backend
@each_optimizer
def test_parameter_without_a_gradient_on_some_ranks(optim_factory: OptimFactory, backend: AverageBackend) -> None:
    # where no rank has one the optimizer must not see a zero instead: momentum and weight decay would move it
    samples = numbered_samples(61, seed=3)
    outcome = train_sync(samples, backend=backend, world_size=2, optim_factory=optim_factory, model_factory=branches)
    expected = single_process(samples, global_batch=16, optim_factory=optim_factory, model_factory=branches)
    assert relative_error(outcome, expected) < 1e-5


def test_untouched_parameter_keeps_its_first_value() -> None:
    torch.manual_seed(SEED)
    initial = Branches().never.weight.detach()
    outcome = train_sync(numbered_samples(40), backend=AverageBackend.GLOO, world_size=2, model_factory=branches)
    assert torch.equal(outcome.state.params["never.weight"], initial)


@each_backend
def test_single_rank_that_is_slow_changes_nothing(backend: AverageBackend) -> None:
    samples = numbered_samples(48)

    def vector(slowdown: float) -> Tensor:
        builder = configure(
            samples,
            policy=ApplyPolicy.SYNC,
            backend=backend,
            devices=["cpu", WorkerSpec("cpu", slowdown)],
            model_factory=mlp,
        )
        return as_vector(train(builder).state)

    assert torch.equal(vector(1.0), vector(4.0))


@each_backend
@pytest.mark.parametrize("world_size", [2, 3])
def test_same_seed_gives_the_same_bits(backend: AverageBackend, world_size: int) -> None:
    samples = numbered_samples(53)
    first, second = (as_vector(train_sync(samples, backend=backend, world_size=world_size).state) for _ in range(2))
    assert torch.equal(first, second)


def test_both_backends_give_the_same_bits() -> None:
    samples = numbered_samples(53)
    gloo, cpu = (
        as_vector(train_sync(samples, backend=backend, world_size=3, optim_factory=adam).state)
        for backend in (AverageBackend.GLOO, AverageBackend.CPU)
    )
    assert torch.equal(gloo, cpu)


@each_backend
def test_other_seed_gives_other_parameters(backend: AverageBackend) -> None:
    samples = numbered_samples(53)
    first, second = (as_vector(train_sync(samples, backend=backend, world_size=2, seed=s).state) for s in (1, 2))
    assert not torch.equal(first, second)


def test_seed_decides_the_order_of_samples_apart_from_the_first_parameters() -> None:
    samples = numbered_samples(53)

    def zeros(device: torch.device) -> nn.Module:
        model = mlp(device)
        for param in model.parameters():
            nn.init.constant_(param, 0.1)
        return model

    first, second = (
        as_vector(train_sync(samples, backend=AverageBackend.GLOO, world_size=2, model_factory=zeros, seed=seed).state)
        for seed in (1, 2)
    )
    assert not torch.equal(first, second)


def test_single_device_is_a_plain_loop() -> None:
    samples = numbered_samples(53)
    outcome = train_sync(samples, backend=AverageBackend.CPU, world_size=1, optim_factory=adam)
    assert torch.equal(as_vector(outcome.state), single_process(samples, global_batch=BATCH_SIZE, optim_factory=adam))


def test_batch_statistics_are_averaged_by_samples() -> None:
    # batch-coupled layers are outside law 5, but what the ranks end with is one and the same
    def norm(device: torch.device) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(NUM_FEATURES, momentum=1.0), nn.Linear(NUM_FEATURES, 1)).to(device)

    samples = numbered_samples(16)
    outcomes = [
        train_sync(samples, backend=backend, world_size=2, model_factory=norm)
        for backend in (AverageBackend.GLOO, AverageBackend.CPU)
    ]
    order = Permutations(seed=SEED, num_samples=16).indices(epoch=NUM_EPOCHS - 1, offset=0, size=16)
    for outcome in outcomes:
        # with momentum 1 the running mean is the last batch's own
        torch.testing.assert_close(outcome.state.buffers["0.running_mean"], samples[0][order].mean(0))
        assert outcome.state.buffers["0.num_batches_tracked"].item() == NUM_EPOCHS
