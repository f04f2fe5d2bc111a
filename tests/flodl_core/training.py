"""Small training runs for the tests of the engine: a model, a dataset whose samples know their numbers, and a log."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from flodl_core import (
    ApplyPolicy,
    AverageBackend,
    Ddp,
    DdpBuilder,
    DdpHandle,
    EpochMetrics,
    Event,
    TrainedState,
    WorkerContext,
    WorkerSpec,
)

LIMIT_S = 30.0
"""How long a run may take before a test gives it up as hanging; none takes a tenth of it."""
NUM_FEATURES = 4
LR = 0.05

POLICIES = tuple(ApplyPolicy)
BACKENDS = (AverageBackend.GLOO, AverageBackend.CPU)
LOCAL_POLICIES = (ApplyPolicy.CADENCE, ApplyPolicy.ASYNC)

every_way = pytest.mark.parametrize(
    ("policy", "backend"), [pytest.param(p, b, id=f"{p}-{b}") for p, b in itertools.product(POLICIES, BACKENDS)]
)
every_local_way = pytest.mark.parametrize(
    ("policy", "backend"), [pytest.param(p, b, id=f"{p}-{b}") for p, b in itertools.product(LOCAL_POLICIES, BACKENDS)]
)
each_backend = pytest.mark.parametrize("backend", BACKENDS)

Samples = tuple[Tensor, Tensor, Tensor]
"""Inputs, shape (n, NUM_FEATURES); targets, shape (n, 1); numbers of the samples, int64, shape (n,)."""
TrainFn = Callable[[nn.Module, Any], Tensor]


def numbered_samples(num_samples: int, *, seed: int = 0) -> Samples:
    """A linear problem with some noise, every sample with its number."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_samples, NUM_FEATURES, generator=generator)
    weights = torch.arange(1.0, NUM_FEATURES + 1)
    targets = inputs @ weights.unsqueeze(1) + 0.1 * torch.randn(num_samples, 1, generator=generator)
    return inputs, targets, torch.arange(num_samples)


def linear(device: torch.device) -> nn.Module:
    """The smallest model: NUM_FEATURES + 1 parameters."""
    return nn.Linear(NUM_FEATURES, 1, device=device)


def mlp(device: torch.device) -> nn.Module:
    """A model with a hidden layer."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)


def sgd(params: Any) -> SGD:
    """The optimizer where it does not matter which."""
    return SGD(params, lr=LR)


def mean_squared_error(model: nn.Module, batch: Any) -> Tensor:
    """Loss of a batch of numbered samples."""
    return F.mse_loss(model(batch[0]), batch[1])


@dataclass(slots=True)
class TrainLog:
    """What was trained, written down inside ``train_fn`` and ``step``. Any thread may write.

    Attributes:
        samples: (epoch, sample number) to times trained.
        num_calls: Calls of ``train_fn``.
        num_steps: Steps of all optimizers.
        sizes: Samples in each batch, in no order.
        begun: Epochs that ``epoch_fn`` was called for, by rank.
    """

    samples: Counter[tuple[int, int]] = field(default_factory=Counter)
    num_calls: int = 0
    num_steps: int = 0
    sizes: list[int] = field(default_factory=list)
    begun: dict[int, list[int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.local = field(default_factory=threading.local)

    def begin_epoch(self, epoch: int, worker: WorkerContext) -> None:
        """An ``epoch_fn``."""
        self._thread.epoch = epoch
        with self._lock:
            self.begun.setdefault(worker.rank, []).append(epoch)

    def train_fn(self, model: nn.Module, batch: Samples) -> Tensor:
        """A ``train_fn``."""
        numbers = batch[2].tolist()
        with self._lock:
            self.num_calls += 1
            self.sizes.append(len(numbers))
            self.samples.update((self._thread.epoch, number) for number in numbers)
        return mean_squared_error(model, batch)

    def make_optimizer(self, params: Any) -> SGD:
        """An ``optim_factory``."""
        optimizer = sgd(params)
        optimizer.register_step_post_hook(self._count_step)
        return optimizer

    def _count_step(self, *_: object) -> None:
        with self._lock:
            self.num_steps += 1


def configure(
    samples: object,
    *,
    policy: ApplyPolicy = ApplyPolicy.CADENCE,
    backend: AverageBackend = AverageBackend.CPU,
    devices: Sequence[str | WorkerSpec] = ("cpu", "cpu"),
    train_fn: TrainFn = mean_squared_error,
    model_factory: Callable[[torch.device], nn.Module] = linear,
    optim_factory: Callable[[Any], torch.optim.Optimizer] = sgd,
    batch_size: int = 8,
    num_epochs: int = 2,
) -> DdpBuilder:
    """A run that a test may describe further."""
    return (
        Ddp.builder(model_factory, optim_factory, train_fn)
        .dataset(samples)
        .batch_size(batch_size)
        .num_epochs(num_epochs)
        .policy(policy)
        .backend(backend)
        .devices(devices)
        .lr_scale_ratio(0.0)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run that has ended."""

    handle: DdpHandle
    state: TrainedState
    metrics: list[EpochMetrics]
    events: list[Event]


def finish(handle: DdpHandle) -> Outcome:
    """Wait for a run's end and read all that it has to tell."""
    with handle:
        state = handle.join(LIMIT_S)
    return Outcome(handle=handle, state=state, metrics=handle.poll_metrics(), events=list(handle.events()))


def train(builder: DdpBuilder) -> Outcome:
    """Run to the end."""
    return finish(builder.run())


def events_of(outcome: Outcome, kind: type[Any]) -> list[Any]:
    """The events of one kind, in order."""
    return [event for event in outcome.events if isinstance(event, kind)]


def as_vector(state: TrainedState) -> Tensor:
    """All parameters as one float64 vector."""
    return torch.cat([tensor.reshape(-1).to(torch.float64) for tensor in state.params.values()])
