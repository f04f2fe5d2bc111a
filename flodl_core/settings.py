"""What a builder has been told, and the job that follows from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flodl_core.data import Batch, as_source
from flodl_core.devices import WorkerSpec, default_workers, resolve_backend, resolve_device
from flodl_core.errors import ConfigError
from flodl_core.job import (
    CheckpointFn,
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
from flodl_core.local_options import DIVERGENCE_THRESHOLD, LocalOptions
from flodl_core.outer import OuterOptions
from flodl_core.policies import ApplyPolicy, AverageBackend, NonFinitePolicy
from flodl_core.timeline import Timeline


@dataclass(slots=True, kw_only=True)
class Settings:
    """Owned by one builder, whose methods of the same names say what each field means."""

    model_factory: ModelFactory
    optim_factory: OptimFactory
    train_fn: TrainFn
    dataset: object | None = None
    collate_fn: Callable[[list[Any]], Batch] | None = None
    batch_size: int | None = None
    grad_accumulation: int = 1
    num_epochs: int | None = None
    max_steps: int | None = None
    max_time_s: float | None = None
    drop_last: bool = False
    seed: int = 42
    specs: tuple[WorkerSpec, ...] | None = None
    policy: ApplyPolicy = ApplyPolicy.CADENCE
    backend: AverageBackend | None = None
    overhead_target: float = 0.03
    anchor: int = 10
    max_anchor: int = 200
    max_batch_diff: int | None = None
    max_overshoot: int | None = None
    divergence_threshold: float | None = DIVERGENCE_THRESHOLD
    progressive_dispatch: bool | None = None
    partition_ratios: tuple[float, ...] | None = None
    speed_hint: tuple[int, float] | None = None
    snapshot_timeout_s: float = 5.0
    outer: OuterOptions | None = None
    worker_timeout_s: float | None = 300.0
    max_grad_norm: float | None = None
    amp: torch.dtype | None = None
    lr_scale_ratio: float = 1.0
    scheduler: SchedulerFactory | None = None
    on_nonfinite: NonFinitePolicy = NonFinitePolicy.EXCLUDE
    epoch_fn: EpochFn | None = None
    eval_fn: EvalFn | None = None
    metrics_fn: MetricsFn | None = None
    checkpoint_every: int | None = None
    checkpoint_fn: CheckpointFn | None = None
    timeline: Timeline | None = None

    @property
    def is_progressive(self) -> bool:
        """Whether an epoch is dealt bit by bit."""
        if self.progressive_dispatch is None:
            return self.policy is not ApplyPolicy.SYNC
        return self.progressive_dispatch

    def job(self) -> Job:
        """The job, once all that goes together has been checked.

        Raises:
            ConfigError: A required method was not called, or what was asked for does not go together.
            DatasetError: The dataset is empty or of an unknown kind.
        """
        batch_size = _required(self.batch_size, "batch_size")
        num_epochs = _required(self.num_epochs, "num_epochs")
        source = as_source(_required(self.dataset, "dataset"), self.collate_fn)
        num_samples = len(source)  # asked for once: a length that changes must not change the run
        specs = self.specs or default_workers()
        devices = tuple(resolve_device(spec) for spec in specs)
        self._check_together(world_size=len(specs))
        backend = resolve_backend(self.backend, devices)
        step_size = batch_size * self.grad_accumulation
        return Job(
            model_factory=self.model_factory,
            optim_factory=self.optim_factory,
            train_fn=self.train_fn,
            source=source,
            batch_size=step_size,
            micro_batch_size=batch_size,
            num_epochs=num_epochs,
            max_steps=self.max_steps,
            max_time_s=self.max_time_s,
            policy=self.policy,
            backend=backend,
            specs=specs,
            devices=devices,
            options=self._options(meets=backend is AverageBackend.GLOO),
            outer=self.outer,
            lr_scale_ratio=self.lr_scale_ratio,
            scheduler=self.scheduler,
            max_grad_norm=self.max_grad_norm,
            amp=self.amp,
            epoch_fn=self.epoch_fn,
            eval_fn=self.eval_fn,
            metrics_fn=self.metrics_fn,
            checkpoint_every=self.checkpoint_every or (1 if self.checkpoint_fn else None),
            checkpoint_fn=self.checkpoint_fn,
            timeline=self.timeline,
            on_nonfinite=self.on_nonfinite,
            worker_timeout_s=self.worker_timeout_s,
            seed=self.seed,
            num_samples=num_samples,
            epoch_size=self._epoch_size(num_samples, step_size, len(specs)),
        )

    def _check_together(self, *, world_size: int) -> None:
        is_local = self.policy is not ApplyPolicy.SYNC
        if self.max_anchor < self.anchor:
            raise ConfigError(f"max_anchor ({self.max_anchor}) must be at least anchor ({self.anchor})")
        if self.outer is not None and not is_local:
            raise ConfigError(
                "outer_optimizer works on averages of parameters, and policy sync averages gradients: use cadence or"
                " async"
            )
        if self.partition_ratios is not None and len(self.partition_ratios) != world_size:
            raise ConfigError(
                f"partition_ratios must have one number for each of the {world_size} workers, not"
                f" {len(self.partition_ratios)}"
            )
        if self.speed_hint is not None and self.speed_hint[0] >= world_size:
            raise ConfigError(f"speed_hint names rank {self.speed_hint[0]}, and the last is {world_size - 1}")
        if self.checkpoint_every is not None and self.checkpoint_fn is None:
            raise ConfigError("checkpoint_every needs a checkpoint_fn to call: call .checkpoint_fn(...)")

    def _options(self, *, meets: bool) -> LocalOptions:
        return LocalOptions(
            policy=self.policy,
            meets=meets,
            anchor=self.anchor,
            max_anchor=self.max_anchor,
            overhead_target=self.overhead_target,
            max_batch_diff=self.max_batch_diff,
            max_overshoot=self.max_overshoot,
            snapshot_timeout_s=self.snapshot_timeout_s,
            divergence_threshold=self.divergence_threshold,
            progressive_dispatch=self.is_progressive,
            partition_ratios=self.partition_ratios,
            speed_hint=self.speed_hint,
        )

    def _epoch_size(self, num_samples: int, step_size: int, world_size: int) -> int:
        if not self.drop_last:
            return num_samples
        whole = step_size * world_size if self.policy is ApplyPolicy.SYNC else step_size
        size = num_samples // whole * whole
        if size == 0:
            raise ConfigError(f"drop_last leaves nothing of {num_samples} samples in batches of {whole}")
        return size

    def training_meta(self, job: Job) -> dict[str, object]:
        """How the run is set up: plain values, for records."""
        meta: dict[str, object] = {
            "mode": "single-device" if job.is_single else "ddp",
            "world_size": job.world_size,
            "devices": [str(spec) for spec in job.specs],
            "workers": "thread",
            "policy": str(job.policy),
            "backend": str(job.backend),
            "batch_size": job.micro_batch_size,
            "grad_accumulation": self.grad_accumulation,
            "num_epochs": job.num_epochs,
            "max_steps": job.max_steps,
            "max_time_s": job.max_time_s,
            "num_samples": job.epoch_size,
            "seed": job.seed,
            "lr_scale": scale_for(job.world_size, job.lr_scale_ratio),
            "lr_scale_ratio": job.lr_scale_ratio,
            "max_grad_norm": job.max_grad_norm,
            "amp": None if job.amp is None else str(job.amp).removeprefix("torch."),
            "on_nonfinite": str(job.on_nonfinite),
            "worker_timeout_s": job.worker_timeout_s,
            "drop_last": self.drop_last,
            "progressive_dispatch": self.is_progressive,
            "partition_ratios": None if self.partition_ratios is None else list(self.partition_ratios),
        }
        return meta if job.is_sync else meta | self._local_meta()

    def _local_meta(self) -> dict[str, object]:
        outer = self.outer
        return {
            "overhead_target": self.overhead_target,
            "anchor": self.anchor,
            "max_anchor": self.max_anchor,
            "max_batch_diff": self.max_batch_diff,
            "max_overshoot": self.max_overshoot,
            "divergence_threshold": self.divergence_threshold,
            "speed_hint": None if self.speed_hint is None else list(self.speed_hint),
            "outer_lr": None if outer is None else outer.lr,
            "outer_momentum": None if outer is None else outer.momentum,
            "outer_nesterov": None if outer is None else outer.nesterov,
        }


def _required(value: Any, method: str) -> Any:
    if value is None:
        raise ConfigError(f"{method} is required: call .{method}(...) before .run()")
    return value
