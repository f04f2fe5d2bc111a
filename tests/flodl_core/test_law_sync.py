"""Laws 5 and 7: sync equals one process on the concatenated batch, and repeats bit for bit."""

import pytest
import torch
from torch import Tensor, nn

from flodl_core import ApplyPolicy, AverageBackend, WorkerSpec
from flodl_core.data import Permutations
from tests.flodl_core.single_process import (
    OPTIMIZERS,
    SyncSetup,
    adam,
    check_same_bits,
    check_sync,
    falling,
    single_process,
    train_sync,
)
from tests.flodl_core.training import (
    BACKENDS,
    NUM_FEATURES,
    as_vector,
    configure,
    each_backend,
    mlp,
    numbered_samples,
    train,
)

each_optimizer = pytest.mark.parametrize("optimizer", list(OPTIMIZERS))


@each_backend
@each_optimizer
@pytest.mark.parametrize("world_size", [2, 3])
def test_sync_equals_one_process_on_the_concatenated_batch(
    optimizer: str, backend: AverageBackend, world_size: int
) -> None:
    # the last round holds 5 samples: split unevenly, and with more ranks than some of them have batches
    samples = numbered_samples(3 * 8 * world_size + 5)
    check_sync(SyncSetup(samples=samples, world_size=world_size, optim_factory=OPTIMIZERS[optimizer]), backend)


@each_backend
@pytest.mark.parametrize("num_samples", [1, 2, 3, 17, 25])
def test_sync_equals_one_process_where_ranks_have_no_samples(backend: AverageBackend, num_samples: int) -> None:
    # 17 and 25: a last round of one sample, which one rank of three trains while the others enter without weight
    check_sync(SyncSetup(samples=numbered_samples(num_samples), world_size=3), backend)


@each_backend
@each_optimizer
def test_clipping_follows_the_average(optimizer: str, backend: AverageBackend) -> None:
    samples, factory = numbered_samples(53), OPTIMIZERS[optimizer]
    expected = single_process(SyncSetup(samples=samples, world_size=2, optim_factory=factory, max_grad_norm=0.3))
    unclipped = single_process(SyncSetup(samples=samples, world_size=2, optim_factory=factory))
    assert float((expected - unclipped).norm() / unclipped.norm()) > 1e-3, "the limit must matter for this test"
    check_sync(SyncSetup(samples=samples, world_size=2, optim_factory=factory, max_grad_norm=0.3), backend)


@each_backend
@each_optimizer
def test_schedule_stands_at_the_batches_of_all_ranks(optimizer: str, backend: AverageBackend) -> None:
    setup = SyncSetup(
        samples=numbered_samples(61),  # its last round occupies all three ranks, the epoch after it starts anew
        world_size=3,
        optim_factory=OPTIMIZERS[optimizer],
        schedule=falling,
        lr_scale_ratio=0.5,
    )
    check_sync(setup, backend)


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
def test_parameter_without_a_gradient_on_some_ranks(optimizer: str, backend: AverageBackend) -> None:
    # where no rank has one the optimizer must not see a zero instead: momentum and weight decay would move it
    setup = SyncSetup(
        samples=numbered_samples(61, seed=3),
        world_size=2,
        optim_factory=OPTIMIZERS[optimizer],
        model_factory=branches,
    )
    check_sync(setup, backend)


def test_untouched_parameter_keeps_its_first_value() -> None:
    setup = SyncSetup(samples=numbered_samples(40), world_size=2, model_factory=branches)
    torch.manual_seed(setup.seed)
    initial = Branches().never.weight.detach()
    assert torch.equal(train_sync(setup, AverageBackend.GLOO).state.params["never.weight"], initial)


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
    setup = SyncSetup(samples=numbered_samples(53), world_size=world_size)
    first, second = (as_vector(train_sync(setup, backend).state) for _ in range(2))
    assert torch.equal(first, second)


@each_backend
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_order_in_which_gradients_arrive_changes_no_bit(backend: AverageBackend, world_size: int) -> None:
    check_same_bits(SyncSetup(samples=numbered_samples(53), world_size=world_size), backend)


@each_optimizer
def test_both_backends_give_the_same_bits(optimizer: str) -> None:
    setup = SyncSetup(samples=numbered_samples(53), world_size=3, optim_factory=OPTIMIZERS[optimizer])
    gloo, cpu = (as_vector(train_sync(setup, backend).state) for backend in BACKENDS)
    assert torch.equal(gloo, cpu)


@each_backend
def test_other_seed_gives_other_parameters(backend: AverageBackend) -> None:
    samples = numbered_samples(53)
    first, second = (
        as_vector(train_sync(SyncSetup(samples=samples, world_size=2, seed=seed), backend).state) for seed in (1, 2)
    )
    assert not torch.equal(first, second)


def test_seed_decides_the_order_of_samples_apart_from_the_first_parameters() -> None:
    samples = numbered_samples(53)

    def constant(device: torch.device) -> nn.Module:
        model = mlp(device)
        for param in model.parameters():
            nn.init.constant_(param, 0.1)
        return model

    setups = [SyncSetup(samples=samples, world_size=2, model_factory=constant, seed=seed) for seed in (1, 2)]
    first, second = (as_vector(train_sync(setup, AverageBackend.GLOO).state) for setup in setups)
    assert not torch.equal(first, second)


def test_single_device_is_a_plain_loop() -> None:
    setup = SyncSetup(samples=numbered_samples(53), world_size=1, optim_factory=adam)
    assert torch.equal(as_vector(train_sync(setup, AverageBackend.CPU).state), single_process(setup))


def test_batch_statistics_are_averaged_by_samples() -> None:
    # batch-coupled layers are outside law 5, but what the ranks end with is one and the same
    def norm(device: torch.device) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(NUM_FEATURES, momentum=1.0), nn.Linear(NUM_FEATURES, 1)).to(device)

    setup = SyncSetup(samples=numbered_samples(16), world_size=2, model_factory=norm)
    outcomes = [train_sync(setup, backend) for backend in BACKENDS]
    permutations = Permutations(seed=setup.seed, num_samples=16)
    order = permutations.indices(epoch=setup.num_epochs - 1, offset=0, size=16)
    for outcome in outcomes:
        # with momentum 1 the running mean is the last batch's own
        torch.testing.assert_close(outcome.state.buffers["0.running_mean"], setup.samples[0][order].mean(0))
        assert outcome.state.buffers["0.num_batches_tracked"].item() == setup.num_epochs
