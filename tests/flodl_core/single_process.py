"""Laws 5 and 7: a training under sync, and the same as a plain loop over the concatenated batches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from flodl_core import ApplyPolicy, AverageBackend, WorkerSpec
from flodl_core.data import Permutations
from tests.flodl_core.arrivals import arriving
from tests.flodl_core.training import Outcome, Samples, TrainFn, as_vector, configure, mean_squared_error, mlp, train

OptimFactory = Callable[[Any], Optimizer]
ModelFactory = Callable[[torch.device], nn.Module]


def plain_sgd(params: Any) -> Optimizer:
    return SGD(params, lr=0.05)


def momentum(params: Any) -> Optimizer:
    return SGD(params, lr=0.02, momentum=0.9)


def nesterov(params: Any) -> Optimizer:
    return SGD(params, lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-3)


def adam(params: Any) -> Optimizer:
    return Adam(params, lr=0.01)


def adamw(params: Any) -> Optimizer:
    return AdamW(params, lr=0.01, weight_decay=0.1)


OPTIMIZERS: dict[str, OptimFactory] = {
    factory.__name__: factory for factory in (plain_sgd, momentum, nesterov, adam, adamw)
}


def falling(position: int) -> float:
    """A schedule that no two positions share a value of."""
    return 1.0 / (1.0 + 0.05 * position)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSetup:
    """What is trained, by however many processes."""

    samples: Samples
    world_size: int
    batch_size: int = 8
    num_epochs: int = 3
    optim_factory: OptimFactory = nesterov
    model_factory: ModelFactory = mlp
    train_fn: TrainFn = mean_squared_error
    max_grad_norm: float | None = None
    schedule: Callable[[int], float] | None = None
    lr_scale_ratio: float = 0.0
    seed: int = 7


def single_process(setup: SyncSetup) -> Tensor:
    """The oracle: one model, one optimizer, whole batches; returns the parameters as one float64 vector."""
    torch.manual_seed(setup.seed)
    model = setup.model_factory(torch.device("cpu"))
    trainable = [param for param in model.parameters() if param.requires_grad]
    optimizer = setup.optim_factory(trainable)
    base = optimizer.param_groups[0]["lr"] * (1 + (setup.world_size - 1) * setup.lr_scale_ratio)
    num_samples = len(setup.samples[0])
    permutations = Permutations(seed=setup.seed, num_samples=num_samples)
    position = 0
    for epoch in range(setup.num_epochs):
        order = permutations.indices(epoch=epoch, offset=0, size=num_samples)
        for indices in order.split(setup.world_size * setup.batch_size):
            optimizer.param_groups[0]["lr"] = base * (setup.schedule(position) if setup.schedule else 1.0)
            optimizer.zero_grad()
            setup.train_fn(model, tuple(tensor[indices] for tensor in setup.samples)).backward()
            if setup.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(trainable, setup.max_grad_norm)
            optimizer.step()
            position += min(setup.world_size, len(indices))  # every rank with samples trains a batch
    named = model.named_parameters(remove_duplicate=False)  # a tied one under each of its names, as in a trained state
    return torch.cat([param.detach().reshape(-1).to(torch.float64) for _, param in named])


def train_sync(setup: SyncSetup, backend: AverageBackend) -> Outcome:
    """The same by the engine, with one worker for each rank."""
    builder = configure(
        setup.samples,
        policy=ApplyPolicy.SYNC,
        backend=backend,
        devices=[WorkerSpec("cpu", 1.0 + rank) for rank in range(setup.world_size)],  # speed must make no difference
        train_fn=setup.train_fn,
        model_factory=setup.model_factory,
        optim_factory=setup.optim_factory,
        batch_size=setup.batch_size,
        num_epochs=setup.num_epochs,
    )
    builder.seed(setup.seed).lr_scale_ratio(setup.lr_scale_ratio)
    if setup.max_grad_norm is not None:
        builder.max_grad_norm(setup.max_grad_norm)
    if setup.schedule is not None:
        schedule = setup.schedule
        builder.scheduler(lambda world_size: schedule)
    return train(builder)


def relative_error(outcome: Outcome, expected: Tensor) -> float:
    """Of the trained parameters, as a whole."""
    return float((as_vector(outcome.state) - expected).norm() / expected.norm())


def check_sync(setup: SyncSetup, backend: AverageBackend, *, tolerance: float = 1e-5) -> None:
    """Law 5."""
    assert relative_error(train_sync(setup, backend), single_process(setup)) <= tolerance


def check_same_bits(setup: SyncSetup, backend: AverageBackend) -> None:
    """Law 7: the same run again gives the same bits, in whatever order the ranks' gradients arrive."""
    vectors = []
    for order in (range(setup.world_size), reversed(range(setup.world_size))):
        with arriving(list(order)):
            vectors.append(as_vector(train_sync(setup, backend).state))
    assert torch.equal(*vectors), "the same seed gave other parameters"
