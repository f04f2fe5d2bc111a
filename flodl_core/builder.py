"""``Ddp.builder``: a run, described step by step and checked at each."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch

from flodl_core.arguments import (
    check_amp,
    check_callable,
    check_devices,
    check_flag,
    check_ratios,
    check_text,
    real_number,
    whole_number,
)
from flodl_core.data import Batch
from flodl_core.devices import WorkerSpec, resolve_device
from flodl_core.display_text import value_text
from flodl_core.errors import ConfigError
from flodl_core.handle import DdpHandle
from flodl_core.job import (
    CheckpointFn,
    EpochFn,
    EvalFn,
    MetricsFn,
    ModelFactory,
    OptimFactory,
    SchedulerFactory,
    TrainFn,
)
from flodl_core.local_options import MAX_SPEED_RATIO
from flodl_core.outer import OuterOptions
from flodl_core.policies import ApplyPolicy, AverageBackend, NonFinitePolicy, parse_choice
from flodl_core.run import Run
from flodl_core.settings import Settings
from flodl_core.timeline import Timeline

MAX_ACCUMULATION = 1 << 16


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
        self._settings = Settings(
            model_factory=check_callable("model_factory", model_factory),
            optim_factory=check_callable("optim_factory", optim_factory),
            train_fn=check_callable("train_fn", train_fn),
        )

    # What to train

    def dataset(self, dataset: object) -> Self:
        """The training data.

        A ``BatchDataSet``; a tensor, or a tuple or dict of tensors that share their first dimension; a
        ``TensorDataset``; or a map-style dataset, read one batch ahead by a thread of each worker.
        """
        self._settings.dataset = dataset
        return self

    def collate_fn(self, collate_fn: Callable[[list[Any]], Batch]) -> Self:
        """Joins samples of a map-style dataset to a batch; default ``torch.utils.data.default_collate``."""
        self._settings.collate_fn = check_callable("collate_fn", collate_fn)
        return self

    def batch_size(self, batch_size: int) -> Self:
        """Samples in a worker's batch, at least 1."""
        self._settings.batch_size = whole_number("batch_size", batch_size, least=1)
        return self

    def grad_accumulation(self, num_batches: int) -> Self:
        """Step after the gradients of so many batches: an optimizer step takes ``batch_size x num_batches`` samples."""
        self._settings.grad_accumulation = whole_number(
            "grad_accumulation", num_batches, least=1, most=MAX_ACCUMULATION
        )
        return self

    def num_epochs(self, num_epochs: int) -> Self:
        """Epochs, at least 1."""
        self._settings.num_epochs = whole_number("num_epochs", num_epochs, least=1)
        return self

    def max_steps(self, max_steps: int) -> Self:
        """End, as completed, when all workers together have done so many optimizer steps.

        Exact under cadence and async; sync ends with the round that reaches it. An epoch that is cut short has no
        ``EpochMetrics``.
        """
        self._settings.max_steps = whole_number("max_steps", max_steps, least=1)
        return self

    def max_time_s(self, max_time_s: float) -> Self:
        """End, as completed, after the batches under way when so many seconds have passed since the start."""
        self._settings.max_time_s = real_number("max_time_s", max_time_s, above=0.0)
        return self

    def drop_last(self, drop_last: bool = True) -> Self:
        """Leave out an epoch's last batch where it is smaller (in sync: the last round's, of all workers together)."""
        self._settings.drop_last = check_flag("drop_last", drop_last)
        return self

    def seed(self, seed: int) -> Self:
        """Seed of initial parameters and sample order, 0 to 2**63 - 1; ``run`` also seeds torch's generator with it."""
        self._settings.seed = whole_number("seed", seed, least=0, most=2**63 - 1)
        return self

    # Where, when and how to average

    def devices(self, devices: Iterable[str | WorkerSpec | torch.device]) -> Self:
        """One worker for each: ``"cpu"``, ``"cuda:1"``, ``"cpu@2.5"`` or ``WorkerSpec``. Default: every CUDA device."""
        specs = check_devices(devices)
        for spec in specs:
            resolve_device(spec)
        self._settings.specs = specs
        return self

    def workers(self, kind: str) -> Self:
        """What a worker is: ``thread``, of this process."""
        kind = check_text("workers", kind)
        if kind in ("process", "ray", "auto"):
            raise ConfigError(f"workers({kind!r}) is not built yet: use thread")
        if kind != "thread":
            raise ConfigError(f"workers must be thread, not {value_text(kind)}")
        return self

    def policy(self, policy: ApplyPolicy | str) -> Self:
        """When replicas are averaged: ``sync``, ``cadence`` (default) or ``async``.

        Over an all-reduce, ``async`` is a cadence by counts: ranks do meet, when the first of them has done its count.
        """
        self._settings.policy = parse_choice(ApplyPolicy, policy, what="policy")
        return self

    def backend(self, backend: AverageBackend | str) -> Self:
        """How replicas are averaged: ``gloo`` or ``cpu`` (default); ``nccl`` is not built yet."""
        self._settings.backend = parse_choice(AverageBackend, backend, what="backend")
        return self

    def overhead_target(self, overhead_target: float) -> Self:
        """Share of training time that averaging may cost before rounds get longer; clamped to 0.01..0.50."""
        value = real_number("overhead_target", overhead_target, above=0.0)
        self._settings.overhead_target = min(max(value, 0.01), 0.5)
        return self

    def anchor(self, anchor: int) -> Self:
        """Batches that the slowest worker does in a round, at the start and at least."""
        self._settings.anchor = whole_number("anchor", anchor, least=1)
        return self

    def max_anchor(self, max_anchor: int) -> Self:
        """Batches that the slowest worker does in a round, at most."""
        self._settings.max_anchor = whole_number("max_anchor", max_anchor, least=1)
        return self

    def max_batch_diff(self, max_batch_diff: int) -> Self:
        """Batches that a worker may be ahead of the slowest within a round: more are not planned, nor done."""
        self._settings.max_batch_diff = whole_number("max_batch_diff", max_batch_diff, least=0)
        return self

    def max_overshoot(self, max_overshoot: int) -> Self:
        """Batches of the next epoch that a worker may train while this one runs out; default: 2 to 10, adaptive."""
        self._settings.max_overshoot = whole_number("max_overshoot", max_overshoot, least=0, most=1000)
        return self

    def divergence_threshold(self, threshold: float) -> Self:
        """Hold the cadence where it is while replicas drift apart: default 0.05.

        Drift is ``||before - after|| / ||after||`` of a replica at an average. It holds anchor and overshoot when the
        largest has risen at three averages in a row and is above ``threshold``.
        """
        self._settings.divergence_threshold = real_number("divergence_threshold", threshold, above=0.0)
        return self

    def no_divergence_guard(self) -> Self:
        """Let anchor and overshoot grow however far replicas drift apart."""
        self._settings.divergence_threshold = None
        return self

    def progressive_dispatch(self, progressive: bool = True) -> Self:
        """Deal an epoch bit by bit, as workers need it (default for cadence and async), or whole at its start.

        Dealt whole, each worker gets a share in proportion to its speed as known then, and none goes on to the next
        epoch before all are done: a worker that slows down holds up the epoch. Under sync the samples of a round follow
        from its number either way, and the result is the same bit for bit.
        """
        self._settings.progressive_dispatch = check_flag("progressive_dispatch", progressive)
        return self

    def partition_ratios(self, ratios: Sequence[float]) -> Self:
        """Share of each epoch for each worker (in sync: of each round), instead of what its speed would give it.

        Args:
            ratios: A number above 0 for each worker, by rank; only their proportions count.
        """
        self._settings.partition_ratios = check_ratios("partition_ratios", ratios)
        return self

    def speed_hint(self, slow_rank: int, ratio: float) -> Self:
        """Plan the first round as if every other worker were ``ratio`` (1 to a million) times as fast as ``slow_rank``.

        Without a hint the first round is planned when each worker has been measured. Measurements replace the hint.
        """
        rank = whole_number("slow_rank", slow_rank, least=0)
        self._settings.speed_hint = (rank, real_number("ratio", ratio, least=1.0, most=MAX_SPEED_RATIO))
        return self

    def snapshot_timeout_s(self, snapshot_timeout_s: float) -> Self:
        """CPU backend: seconds, plus three of its batches, after which an average goes on without a worker."""
        self._settings.snapshot_timeout_s = real_number("snapshot_timeout_s", snapshot_timeout_s, above=0.0)
        return self

    def outer_optimizer(self, lr: float = 0.7, momentum: float = 0.9, nesterov: bool = True) -> Self:
        """Step towards the mean of the replicas instead of taking it (DiLoCo, Douillard et al. 2023).

        SGD with (Nesterov) momentum on the displacement of the mean from the last consensus; ``lr`` 1 without momentum
        takes the mean itself. For cadence and async.
        """
        self._settings.outer = OuterOptions(
            lr=real_number("outer lr", lr, above=0.0),
            momentum=real_number("outer momentum", momentum, least=0.0),
            nesterov=check_flag("nesterov", nesterov),
        )
        return self

    # Steps

    def max_grad_norm(self, max_grad_norm: float) -> Self:
        """Clip the gradients' total norm to this before each step."""
        self._settings.max_grad_norm = real_number("max_grad_norm", max_grad_norm, above=0.0)
        return self

    def amp(self, dtype: torch.dtype | str | bool | None = True) -> Self:
        """Run ``train_fn`` under autocast in bfloat16; parameters, gradients and averages stay as they are."""
        self._settings.amp = check_amp(dtype)
        return self

    def lr_scale_ratio(self, lr_scale_ratio: float) -> Self:
        """Multiply the learning rate by 1 + (world_size - 1) x ratio (Goyal et al. 2017); default 1, 0 turns it off."""
        self._settings.lr_scale_ratio = real_number("lr_scale_ratio", lr_scale_ratio, least=0.0)
        return self

    def scheduler(self, factory: SchedulerFactory) -> Self:
        """``factory(world_size)`` returns a schedule: batches of all workers so far to a factor of the lr."""
        self._settings.scheduler = check_callable("scheduler", factory)
        return self

    def on_nonfinite(self, on_nonfinite: NonFinitePolicy | str) -> Self:
        """A replica with NaN or infinity: ``exclude`` it from the average (default) or ``stop`` the run."""
        self._settings.on_nonfinite = parse_choice(NonFinitePolicy, on_nonfinite, what="on_nonfinite")
        return self

    def worker_timeout_s(self, worker_timeout_s: float | None) -> Self:
        """Seconds that a worker may take for one batch, its start included, before it counts as lost; default 300.

        It is named with its stack. None waits for as long as it takes.
        """
        if worker_timeout_s is not None:
            worker_timeout_s = real_number("worker_timeout_s", worker_timeout_s, above=0.0)
        self._settings.worker_timeout_s = worker_timeout_s
        return self

    def on_worker_failure(self, on_worker_failure: str) -> Self:
        """A worker that raises or hangs: ``stop`` the run and return the average of the others."""
        reaction = check_text("on_worker_failure", on_worker_failure)
        if reaction in ("continue", "restart"):
            raise ConfigError(f"on_worker_failure({reaction!r}) is not built yet: use stop")
        if reaction != "stop":
            raise ConfigError(f"on_worker_failure must be stop, not {value_text(reaction)}")
        return self

    # Callbacks

    def epoch_fn(self, epoch_fn: EpochFn) -> Self:
        """``epoch_fn(epoch, worker)``, in each worker's thread, once for each epoch, in order."""
        self._settings.epoch_fn = check_callable("epoch_fn", epoch_fn)
        return self

    def eval_fn(self, eval_fn: EvalFn) -> Self:
        """``eval_fn(model)`` returns numbers by name for the average at an epoch's end, beside the training."""
        self._settings.eval_fn = check_callable("eval_fn", eval_fn)
        return self

    def metrics_fn(self, metrics_fn: MetricsFn) -> Self:
        """``metrics_fn(metrics)`` for each epoch, in order, beside the training."""
        self._settings.metrics_fn = check_callable("metrics_fn", metrics_fn)
        return self

    def checkpoint_fn(self, checkpoint_fn: CheckpointFn) -> Self:
        """``checkpoint_fn(version, model)`` with the average at the end of an epoch, beside the training.

        ``version`` counts averages; on a single device, epochs. The model is one of its own: whatever is done to it
        does not reach the training.
        """
        self._settings.checkpoint_fn = check_callable("checkpoint_fn", checkpoint_fn)
        return self

    def checkpoint_every(self, num_epochs: int) -> Self:
        """Call ``checkpoint_fn`` after every so many epochs; default 1."""
        self._settings.checkpoint_every = whole_number("checkpoint_every", num_epochs, least=1)
        return self

    def checkpoint_dir(self, path: str) -> Self:
        """Not built yet: checkpoints that a run can go on from.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("checkpoint_dir is not built yet: keep the averages themselves by checkpoint_fn")

    def resume_from(self, path: str) -> Self:
        """Not built yet: a run that goes on from a checkpoint.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("resume_from is not built yet: load a trained state in model_factory to start from it")

    def timeline(self, timeline: Timeline) -> Self:
        """Record what the machine and each worker do, moment by moment; a timeline serves one run."""
        if not isinstance(timeline, Timeline):
            raise ConfigError(f"timeline must be a Timeline, not {type(timeline).__name__}")
        self._settings.timeline = timeline
        return self

    # The run

    def run(self) -> DdpHandle:
        """Start training in the background.

        Raises:
            ConfigError: A required method was not called, or what was asked for does not go together.
            DatasetError: The dataset is empty or of an unknown kind.
            ModelError: The model cannot be replicated.
        """
        job = self._settings.job()
        run = Run(job)
        handle = DdpHandle(run, training_meta=self._settings.training_meta(job))
        run.start()
        return handle


class Ddp:
    """The entry to flodl."""

    @staticmethod
    def builder(model_factory: ModelFactory, optim_factory: OptimFactory, train_fn: TrainFn) -> DdpBuilder:
        """Describe a run; see ``DdpBuilder`` for the arguments."""
        return DdpBuilder(model_factory, optim_factory, train_fn)

    @staticmethod
    def auto(
        model_factory: ModelFactory,
        optim_factory: OptimFactory,
        train_fn: TrainFn,
        dataset: object,
        *,
        batch_size: int,
        num_epochs: int,
        **options: Any,
    ) -> DdpHandle:
        """Describe a run and start it, in one call.

        Args:
            model_factory: As in ``DdpBuilder``.
            optim_factory: As in ``DdpBuilder``.
            train_fn: As in ``DdpBuilder``.
            dataset: As in ``DdpBuilder.dataset``.
            batch_size: Samples in a worker's batch.
            num_epochs: Epochs.
            options: Any other method of ``DdpBuilder`` by name, with its argument: ``policy="async"``,
                ``devices=["cpu", "cpu@2.5"]``. Where a method takes several arguments, a tuple of them or a dict:
                ``speed_hint=(1, 2.5)``, ``outer_optimizer={"lr": 0.7}``.

        Raises:
            ConfigError: There is no such option, or as in ``DdpBuilder.run``.
            DatasetError: As in ``DdpBuilder.run``.
            ModelError: As in ``DdpBuilder.run``.
        """
        builder = DdpBuilder(model_factory, optim_factory, train_fn)
        builder.dataset(dataset).batch_size(batch_size).num_epochs(num_epochs)
        for name, value in options.items():
            _apply(builder, name, value)
        return builder.run()


_OPTIONS = tuple(sorted(name for name in vars(DdpBuilder) if not name.startswith("_") and name != "run"))


def _apply(builder: DdpBuilder, name: str, value: Any) -> None:
    if name not in _OPTIONS:
        raise ConfigError(f"there is no option {name!r}: use {', '.join(_OPTIONS)}")
    method = getattr(builder, name)
    takes_several = name in ("outer_optimizer", "speed_hint")
    if takes_several and isinstance(value, dict):
        _call(method, **value)
    elif takes_several and isinstance(value, tuple | list):
        _call(method, *value)
    elif name == "no_divergence_guard":
        if check_flag(name, value):
            method()
    else:
        _call(method, value)


def _call(method: Callable[..., DdpBuilder], *values: Any, **named: Any) -> None:
    try:
        inspect.signature(method).bind(*values, **named)
    except TypeError as error:
        raise ConfigError(f"the option {method.__name__}: {error}") from None
    method(*values, **named)
