"""``Ddp.builder``: a run, described step by step and checked at each."""

import math
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch

from flodl_core.data import Batch, as_source
from flodl_core.devices import WorkerSpec, default_workers, parse_worker_spec, resolve_backend, resolve_device
from flodl_core.errors import ConfigError
from flodl_core.handle import DdpHandle
from flodl_core.job import (
    EpochFn,
    EvalFn,
    Job,
    MetricsFn,
    ModelFactory,
    OptimFactory,
    SchedulerFactory,
    TrainFn,
)
from flodl_core.learning_rate import scale_for
from flodl_core.local_options import LocalOptions
from flodl_core.policies import ApplyPolicy, AverageBackend, NonFinitePolicy, parse_choice
from flodl_core.run import Run


class DdpBuilder:
    """Each method sets one thing, checks it at once (``ConfigError``, a ``ValueError``) and returns the builder.

    ``dataset``, ``batch_size`` and ``num_epochs`` are required.

    Args:
        model_factory: ``model_factory(device)`` builds the model on the device. Called once for each worker and once
            more; must build the same model each time. All replicas start from the parameters of the first.
        optim_factory: ``optim_factory(params)`` builds the optimizer of a replica; if its argument is called
            ``model`` it gets the model instead.
        train_fn: ``train_fn(model, batch)`` returns the batch's loss, a scalar tensor: the mean over its samples. The
            worker does the rest: backward, clipping, learning rate, step and clearing the gradients.
    """

    def __init__(self, model_factory: ModelFactory, optim_factory: OptimFactory, train_fn: TrainFn) -> None:
        for name, value in (
            ("model_factory", model_factory),
            ("optim_factory", optim_factory),
            ("train_fn", train_fn),
        ):
            if not callable(value):
                raise ConfigError(f"{name} must be callable, not {type(value).__name__}")
        self._model_factory = model_factory
        self._optim_factory = optim_factory
        self._train_fn = train_fn
        self._dataset: object | None = None
        self._collate_fn: Callable[[list[Any]], Batch] | None = None
        self._batch_size: int | None = None
        self._num_epochs: int | None = None
        self._policy = ApplyPolicy.CADENCE
        self._backend: AverageBackend | None = None
        self._specs: tuple[WorkerSpec, ...] | None = None
        self._overhead_target = 0.03
        self._anchor = 10
        self._max_anchor = 200
        self._max_batch_diff: int | None = None
        self._max_overshoot: int | None = None
        self._snapshot_timeout_s = 5.0
        self._max_grad_norm: float | None = None
        self._lr_scale_ratio = 1.0
        self._scheduler: SchedulerFactory | None = None
        self._epoch_fn: EpochFn | None = None
        self._eval_fn: EvalFn | None = None
        self._metrics_fn: MetricsFn | None = None
        self._on_nonfinite = NonFinitePolicy.EXCLUDE
        self._seed = 42
        self._drop_last = False

    # What to train

    def dataset(self, dataset: object) -> Self:
        """The training data.

        A ``BatchDataSet``; a tensor, or a tuple or dict of tensors that share their first dimension; a
        ``TensorDataset``; or a map-style dataset, read one batch ahead by a thread of each worker.
        """
        self._dataset = dataset
        return self

    def collate_fn(self, collate_fn: Callable[[list[Any]], Batch]) -> Self:
        """Joins samples of a map-style dataset to a batch; default ``torch.utils.data.default_collate``."""
        self._collate_fn = _callable("collate_fn", collate_fn)
        return self

    def batch_size(self, batch_size: int) -> Self:
        """Samples in a worker's batch, at least 1."""
        self._batch_size = _integer("batch_size", batch_size, least=1)
        return self

    def num_epochs(self, num_epochs: int) -> Self:
        """Epochs, at least 1."""
        self._num_epochs = _integer("num_epochs", num_epochs, least=1)
        return self

    def drop_last(self, drop_last: bool = True) -> Self:
        """Leave out an epoch's last batch where it is smaller (in sync: the last round's, of all workers together)."""
        self._drop_last = bool(drop_last)
        return self

    def seed(self, seed: int) -> Self:
        """Seed of initial parameters and sample order, 0 to 2**63 - 1; ``run`` also seeds torch's generator with it."""
        self._seed = _integer("seed", seed, least=0, most=2**63 - 1)
        return self

    # Where, when and how to average

    def devices(self, devices: Iterable[str | WorkerSpec | torch.device]) -> Self:
        """One worker for each: ``"cpu"``, ``"cuda:1"``, ``"cpu@2.5"`` or ``WorkerSpec``. Default: every CUDA device."""
        if isinstance(devices, str | WorkerSpec | torch.device):
            devices = [devices]
        specs = tuple(_spec(device) for device in devices)
        if not specs:
            raise ConfigError("devices must name at least one device")
        for spec in specs:
            resolve_device(spec)
        self._specs = specs
        return self

    def policy(self, policy: ApplyPolicy | str) -> Self:
        """When replicas are averaged: ``sync``, ``cadence`` (default) or ``async``.

        Over an all-reduce, ``async`` is a cadence by counts: ranks do meet, when the first of them has done its count.
        """
        self._policy = parse_choice(ApplyPolicy, policy, what="policy")
        return self

    def backend(self, backend: AverageBackend | str) -> Self:
        """How replicas are averaged: ``gloo`` or ``cpu`` (default); ``nccl`` is not built yet."""
        self._backend = parse_choice(AverageBackend, backend, what="backend")
        return self

    def overhead_target(self, overhead_target: float) -> Self:
        """Share of training time that averaging may cost before rounds get longer; clamped to 0.01..0.50."""
        value = _number("overhead_target", overhead_target, above=0.0)
        self._overhead_target = min(max(value, 0.01), 0.5)
        return self

    def anchor(self, anchor: int) -> Self:
        """Batches that the slowest worker does in a round, at the start and at least."""
        self._anchor = _integer("anchor", anchor, least=1)
        return self

    def max_anchor(self, max_anchor: int) -> Self:
        """Batches that the slowest worker does in a round, at most."""
        self._max_anchor = _integer("max_anchor", max_anchor, least=1)
        return self

    def max_batch_diff(self, max_batch_diff: int) -> Self:
        """Batches that a worker may be ahead of the slowest within a round."""
        self._max_batch_diff = _integer("max_batch_diff", max_batch_diff, least=0)
        return self

    def max_overshoot(self, max_overshoot: int) -> Self:
        """Batches of the next epoch that a worker may train while this one runs out; default: 2 to 10, adaptive."""
        self._max_overshoot = _integer("max_overshoot", max_overshoot, least=0, most=1000)
        return self

    def snapshot_timeout_s(self, snapshot_timeout_s: float) -> Self:
        """CPU backend: seconds, plus three of its batches, after which an average goes on without a worker."""
        self._snapshot_timeout_s = _number("snapshot_timeout_s", snapshot_timeout_s, above=0.0)
        return self

    # Steps

    def max_grad_norm(self, max_grad_norm: float) -> Self:
        """Clip the gradients' total norm to this before each step."""
        self._max_grad_norm = _number("max_grad_norm", max_grad_norm, above=0.0)
        return self

    def lr_scale_ratio(self, lr_scale_ratio: float) -> Self:
        """Multiply the learning rate by 1 + (world_size - 1) x ratio (Goyal et al. 2017); default 1, 0 turns it off."""
        self._lr_scale_ratio = _number("lr_scale_ratio", lr_scale_ratio, least=0.0)
        return self

    def scheduler(self, factory: SchedulerFactory) -> Self:
        """``factory(world_size)`` returns a schedule: batches of all workers so far to a factor of the lr."""
        self._scheduler = _callable("scheduler", factory)
        return self

    def on_nonfinite(self, on_nonfinite: NonFinitePolicy | str) -> Self:
        """A replica with NaN or infinity: ``exclude`` it from the average (default) or ``stop`` the run."""
        self._on_nonfinite = parse_choice(NonFinitePolicy, on_nonfinite, what="on_nonfinite")
        return self

    # Callbacks

    def epoch_fn(self, epoch_fn: EpochFn) -> Self:
        """``epoch_fn(epoch, worker)``, in each worker's thread, once for each epoch, in order."""
        self._epoch_fn = _callable("epoch_fn", epoch_fn)
        return self

    def eval_fn(self, eval_fn: EvalFn) -> Self:
        """``eval_fn(model)`` returns numbers by name for the average at an epoch's end, beside the training."""
        self._eval_fn = _callable("eval_fn", eval_fn)
        return self

    def metrics_fn(self, metrics_fn: MetricsFn) -> Self:
        """``metrics_fn(metrics)`` for each epoch, in order, beside the training."""
        self._metrics_fn = _callable("metrics_fn", metrics_fn)
        return self

    # The run

    def run(self) -> DdpHandle:
        """Start training in the background.

        Raises:
            ConfigError: A required method was not called, or what was asked for does not go together.
            DatasetError: The dataset is empty or of an unknown kind.
            ModelError: The model cannot be replicated.
        """
        job = self._job()
        run = Run(job)
        handle = DdpHandle(run, training_meta=self._training_meta(job))
        run.start()
        return handle

    def _job(self) -> Job:
        batch_size = _required(self._batch_size, "batch_size")
        num_epochs = _required(self._num_epochs, "num_epochs")
        source = as_source(_required(self._dataset, "dataset"), self._collate_fn)
        num_samples = len(source)  # asked for once: a length that changes must not change the run
        specs = self._specs or default_workers()
        devices = tuple(resolve_device(spec) for spec in specs)
        if self._max_anchor < self._anchor:
            raise ConfigError(f"max_anchor ({self._max_anchor}) must be at least anchor ({self._anchor})")
        backend = resolve_backend(self._backend, devices)
        return Job(
            model_factory=self._model_factory,
            optim_factory=self._optim_factory,
            train_fn=self._train_fn,
            source=source,
            batch_size=batch_size,
            num_epochs=num_epochs,
            policy=self._policy,
            backend=backend,
            specs=specs,
            devices=devices,
            options=self._options(meets=backend is AverageBackend.GLOO),
            lr_scale_ratio=self._lr_scale_ratio,
            scheduler=self._scheduler,
            max_grad_norm=self._max_grad_norm,
            epoch_fn=self._epoch_fn,
            eval_fn=self._eval_fn,
            metrics_fn=self._metrics_fn,
            on_nonfinite=self._on_nonfinite,
            seed=self._seed,
            num_samples=num_samples,
            epoch_size=self._epoch_size(num_samples, batch_size, len(specs)),
        )

    def _options(self, *, meets: bool) -> LocalOptions:
        return LocalOptions(
            policy=self._policy,
            meets=meets,
            anchor=self._anchor,
            max_anchor=self._max_anchor,
            overhead_target=self._overhead_target,
            max_batch_diff=self._max_batch_diff,
            max_overshoot=self._max_overshoot,
            snapshot_timeout_s=self._snapshot_timeout_s,
        )

    def _epoch_size(self, num_samples: int, batch_size: int, world_size: int) -> int:
        if not self._drop_last:
            return num_samples
        whole = batch_size * world_size if self._policy is ApplyPolicy.SYNC else batch_size
        size = num_samples // whole * whole
        if size == 0:
            raise ConfigError(f"drop_last leaves nothing of {num_samples} samples in batches of {whole}")
        return size

    def _training_meta(self, job: Job) -> dict[str, object]:
        meta: dict[str, object] = {
            "mode": "single-device" if job.is_single else "ddp",
            "world_size": job.world_size,
            "devices": [str(spec) for spec in job.specs],
            "workers": "thread",
            "policy": str(job.policy),
            "backend": str(job.backend),
            "batch_size": job.batch_size,
            "num_epochs": job.num_epochs,
            "num_samples": job.epoch_size,
            "seed": job.seed,
            "lr_scale": scale_for(job.world_size, job.lr_scale_ratio),
            "lr_scale_ratio": job.lr_scale_ratio,
            "max_grad_norm": job.max_grad_norm,
            "on_nonfinite": str(job.on_nonfinite),
            "drop_last": self._drop_last,
        }
        if not job.is_sync:
            options = job.options
            meta |= {
                "overhead_target": options.overhead_target,
                "anchor": options.anchor,
                "max_anchor": options.max_anchor,
                "max_batch_diff": options.max_batch_diff,
                "max_overshoot": options.max_overshoot,
            }
        return meta


class Ddp:
    """The entry to flodl."""

    @staticmethod
    def builder(model_factory: ModelFactory, optim_factory: OptimFactory, train_fn: TrainFn) -> DdpBuilder:
        """Describe a run; see ``DdpBuilder`` for the arguments."""
        return DdpBuilder(model_factory, optim_factory, train_fn)


def _required(value: Any, method: str) -> Any:
    if value is None:
        raise ConfigError(f"{method} is required: call .{method}(...) before .run()")
    return value


def _callable(name: str, value: Any) -> Any:
    if not callable(value):
        raise ConfigError(f"{name} must be callable, not {type(value).__name__}")
    return value


def _integer(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} must be an integer {limits}, not {value!r}")
    return int(value)


def _number(name: str, value: Any, *, above: float | None = None, least: float | None = None) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or (above is not None and value <= above) or (least is not None and value < least):
        limits = f"above {above:g}" if above is not None else f"at least {least:g}"
        raise ConfigError(f"{name} must be a number {limits}, not {value!r}")
    return float(value)


def _spec(device: str | WorkerSpec | torch.device) -> WorkerSpec:
    if isinstance(device, WorkerSpec):
        return device
    if isinstance(device, torch.device):
        return WorkerSpec(str(device))
    if isinstance(device, str):
        return parse_worker_spec(device)
    raise ConfigError(f"a device must be a string, a WorkerSpec or a torch.device, not {type(device).__name__}")
