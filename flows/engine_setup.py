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
    )
    return _set_optional(builder, params, recipe)


def _set_optional(builder: DdpBuilder, params: RunParams, recipe: Recipe) -> DdpBuilder:
    """Set what has a default of the engine's own only where something was given."""
    if params.backend is not None:
        builder = builder.backend(params.backend)
    if params.devices is not None:
        builder = builder.devices([parse_worker_spec(device) for device in params.devices])
    if params.max_batch_diff is not None:
        builder = builder.max_batch_diff(params.max_batch_diff)
    if params.max_overshoot is not None:
        builder = builder.max_overshoot(params.max_overshoot)
    if params.max_grad_norm is not None:
        builder = builder.max_grad_norm(params.max_grad_norm)
    if recipe.scheduler is not None:
        builder = builder.scheduler(recipe.scheduler)
    if recipe.evaluate is not None:
        builder = builder.eval_fn(recipe.evaluate)
    return builder
