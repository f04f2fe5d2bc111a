"""From a run's parameters to the engine's builder."""

from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer

from flodl_core import Ddp, DdpBuilder, parse_worker_spec
from flodl_store.params import RunParams
from flows.recipes import Recipe


def build(params: RunParams, recipe: Recipe) -> DdpBuilder:
    """The engine's builder with every parameter set and the recipe's data loaded.

    Args:
        params: With the recipe's defaults filled in.
        recipe: What will be trained.

    Raises:
        DataError: The recipe's data are missing or damaged.
        ConfigError: The engine refuses a parameter.
    """
    assert params.epochs is not None
    assert params.batch_size is not None
    assert params.lr is not None
    lr = params.lr

    def optimizer(model_params: Iterable[nn.Parameter]) -> Optimizer:
        return recipe.optimizer(model_params, lr)

    builder = (
        Ddp.builder(recipe.model, optimizer, recipe.loss)
        .dataset(recipe.dataset())
        .batch_size(params.batch_size)
        .num_epochs(params.epochs)
        .policy(params.policy)
        .overhead_target(params.overhead_target)
        .anchor(params.anchor)
        .max_anchor(params.max_anchor)
        .lr_scale_ratio(params.lr_scale_ratio)
        .seed(params.seed)
        .drop_last(params.drop_last)
        .on_nonfinite(params.on_nonfinite)
        .grad_accumulation(params.grad_accumulation)
        .amp(params.amp)
    )
    return _set_callbacks(_set_optional(_set_guard_and_outer(builder, params), params), recipe)


def _set_guard_and_outer(builder: DdpBuilder, params: RunParams) -> DdpBuilder:
    """Set what the builder takes in another form."""
    if params.divergence_threshold > 0:
        builder = builder.divergence_threshold(params.divergence_threshold)
    else:
        builder = builder.no_divergence_guard()
    given = {"lr": params.outer_lr, "momentum": params.outer_momentum}
    outer = {name: value for name, value in given.items() if value is not None}
    if not outer:
        return builder
    # without momentum there is nothing to look ahead with
    return builder.outer_optimizer(**outer, nesterov=params.outer_momentum != 0)


# Parameters of which None stands for the engine's own default, under the names of the builder's methods.
_OPTIONAL = (
    "backend",
    "max_batch_diff",
    "max_overshoot",
    "progressive_dispatch",
    "max_grad_norm",
    "max_steps",
    "max_time_s",
)


def _set_optional(builder: DdpBuilder, params: RunParams) -> DdpBuilder:
    """Set what has a default of the engine's own only where something was given."""
    for name in _OPTIONAL:
        value = getattr(params, name)
        if value is not None:
            builder = getattr(builder, name)(value)
    if params.devices is not None:
        builder = builder.devices([parse_worker_spec(device) for device in params.devices])
    return builder


def _set_callbacks(builder: DdpBuilder, recipe: Recipe) -> DdpBuilder:
    if recipe.scheduler is not None:
        builder = builder.scheduler(recipe.scheduler)
    if recipe.evaluate is not None:
        builder = builder.eval_fn(recipe.evaluate)
    return builder
