"""Everything that a run needs to know, as the builder leaves it."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from flodl_core.data import BatchSource
from flodl_core.devices import WorkerSpec
from flodl_core.display_text import value_text
from flodl_core.epoch_metrics import EpochMetrics
from flodl_core.errors import ConfigError
from flodl_core.first_forward import FirstForward
from flodl_core.learning_rate import Schedule
from flodl_core.local_options import LocalOptions
from flodl_core.outer import OuterOptions
from flodl_core.policies import ApplyPolicy, AverageBackend, NonFinitePolicy
from flodl_core.timeline import Timeline

if TYPE_CHECKING:
    from flodl_core.trainer import WorkerContext

ModelFactory = Callable[[torch.device], nn.Module]
OptimFactory = Callable[[Any], Optimizer]
TrainFn = Callable[[Any, Any], Tensor]
EvalFn = Callable[[Any], Mapping[str, float]]
SchedulerFactory = Callable[[int], Schedule]
EpochFn = Callable[[int, "WorkerContext"], None]
MetricsFn = Callable[[EpochMetrics], None]
CheckpointFn = Callable[[int, Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A validated run. The builder's methods of the same names say what each field means.

    ``batch_size`` is what an optimizer step takes: the builder's, times ``grad_accumulation``. Forward and backward run
    on ``micro_batch_size`` samples at a time.
    """

    model_factory: ModelFactory
    optim_factory: OptimFactory
    train_fn: TrainFn
    source: BatchSource
    batch_size: int
    num_epochs: int
    policy: ApplyPolicy
    backend: AverageBackend
    specs: tuple[WorkerSpec, ...]
    devices: tuple[torch.device, ...]
    options: LocalOptions
    lr_scale_ratio: float
    scheduler: SchedulerFactory | None
    max_grad_norm: float | None
    epoch_fn: EpochFn | None
    eval_fn: EvalFn | None
    metrics_fn: MetricsFn | None
    on_nonfinite: NonFinitePolicy
    seed: int
    num_samples: int
    epoch_size: int
    micro_batch_size: int
    amp: torch.dtype | None = None
    outer: OuterOptions | None = None
    max_steps: int | None = None
    max_time_s: float | None = None
    worker_timeout_s: float | None = None
    checkpoint_every: int | None = None
    checkpoint_fn: CheckpointFn | None = None
    timeline: Timeline | None = None
    first_forward: FirstForward = field(default_factory=FirstForward)

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return len(self.specs)

    @property
    def is_single(self) -> bool:
        """Whether there is but one worker, and so nothing to average."""
        return self.world_size == 1

    @property
    def is_sync(self) -> bool:
        """Whether workers run the loop that averages gradients (or nothing, on a single device)."""
        return self.is_single or self.policy is ApplyPolicy.SYNC

    @property
    def meets(self) -> bool:
        """Whether workers average at a rendezvous."""
        return not self.is_single and self.backend is AverageBackend.GLOO

    def keeps_epoch(self, epoch: int) -> bool:
        """Whether the state at the end of the epoch is needed: to evaluate or save it, or as the run's result."""
        return self.eval_fn is not None or epoch == self.num_epochs - 1 or self.saves_epoch(epoch)

    def saves_epoch(self, epoch: int) -> bool:
        """Whether ``checkpoint_fn`` is called at the end of the epoch."""
        return self.checkpoint_every is not None and (epoch + 1) % self.checkpoint_every == 0

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """Call ``optim_factory`` with the trainable parameters, or with the model where it asks for that by name.

        Raises:
            ConfigError: What it returned cannot be stepped, or would step other parameters than this model's.
        """
        trainable = [param for param in model.parameters() if param.requires_grad]
        optimizer = self.optim_factory(model if _asks_for_model(self.optim_factory) else trainable)
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(f"optim_factory must return a torch.optim.Optimizer, not {type(optimizer).__name__}")
        if isinstance(optimizer, LBFGS):
            raise ConfigError(
                "LBFGS evaluates the loss several times a step, which train_fn cannot: use another optimizer"
            )
        _check_groups(optimizer, model)
        return optimizer

    def make_schedule(self) -> Schedule | None:
        """Call the factory of the schedule, where there is one.

        Raises:
            ConfigError: What it returned cannot be asked for a position's factor.
        """
        if self.scheduler is None:
            return None
        schedule: Any = self.scheduler(self.world_size)
        if schedule is not None and not callable(schedule):
            raise ConfigError(
                "scheduler takes a function of the number of workers that returns a schedule, such as lambda"
                f" world_size: CosineScheduler(total=1000); what it got returned {value_text(schedule)}"
            )
        return schedule  # type: ignore[no-any-return]  # what it returns is seen when it is asked


def _asks_for_model(factory: Callable[..., Any]) -> bool:
    try:
        names = list(inspect.signature(factory).parameters)
    except ValueError:  # something built in does not tell
        return False
    return bool(names) and names[0] == "model"


def _check_groups(optimizer: Optimizer, model: nn.Module) -> None:
    """An optimizer of other parameters would train them beside the model, unseen by every average."""
    own = {id(param) for param in model.parameters()}
    for group in optimizer.param_groups:
        if not isinstance(group.get("lr"), Real | Tensor):
            raise ConfigError(
                f"the optimizer's groups must have a learning rate as lr, not {value_text(group.get('lr'))}"
            )
        if any(id(param) not in own for param in group["params"]):
            raise ConfigError(
                "the optimizer holds a parameter that is not the model's: optim_factory must make a new optimizer of"
                " the parameters that it is called with, and what is trained must be part of the model"
            )
