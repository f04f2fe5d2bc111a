"""The steps of a training run, as plain functions: prepare, train, publish, evaluate, report.

They need no server and print nothing; whoever runs them sees what happens through a :class:`Watcher`.
"""

import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch

from flodl_core import DdpHandle, EpochMetrics, FlodlError, TrainedState, WorkerError, WorkerFailureWarning
from flodl_store.home import RunFolder, atomic_path, sha256_of
from flodl_store.params import RunParams
from flows.engine_setup import build
from flows.recipes import Recipe, resolve_recipe
from flows.run_results import Prepared, Published, Status, Trained, TrainResult

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.1
"""How old a look at the run's progress may be, and how long a wish to stop may go unheard."""


class Watcher(Protocol):
    """Whoever wants to see a run while it goes on. Called on the thread that called :func:`train`."""

    def started(self, handle: DdpHandle) -> None:
        """Workers have been started."""

    def looked(self, handle: DdpHandle) -> None:
        """A moment has passed: about ten times a second."""

    def epoch_ended(self, metrics: EpochMetrics) -> None:
        """An epoch has been trained, averaged and evaluated."""


def prepare(params: RunParams, *, started_in: Path) -> Prepared:
    """Find the recipe, load its data and set up the engine. Starts nothing.

    Args:
        params: What is asked for.
        started_in: Folder where flodl was started; a recipe's module may lie there.

    Raises:
        RecipeError: The recipe is unknown or cannot be imported.
        DataError: Its data are missing or damaged.
        ConfigError: The engine refuses a parameter.
    """
    recipe = resolve_recipe(params.recipe, folder=started_in)
    filled = _fill_in(params, recipe)
    return Prepared(params=filled, recipe=recipe, builder=build(filled, recipe))


def train(prepared: Prepared, *, watcher: Watcher, stop_requested: Callable[[], bool]) -> Trained:
    """Train to the end, or until a stop is requested or a worker fails.

    Args:
        prepared: What to train.
        watcher: Sees what happens.
        stop_requested: Asked about ten times a second; once it says True the run is cancelled.

    Raises:
        ConfigError: The run cannot start as asked, which is found out before a worker does.
        DatasetError: The same for its data.
        ModelError: The same for its model.
    """
    with prepared.builder.run() as handle:
        watcher.started(handle)
        metrics = _follow(handle, watcher, stop_requested)
        state, error = _join(handle)
        for failure in handle.failures:
            logger.error("rank %d failed\n%s", failure.rank, failure.traceback)
        return Trained(
            status=_status(handle, error),
            state=state,
            metrics=metrics,
            progress=handle.progress(),
            failures=handle.failures,
            error=error,
            devices=handle.devices,
            backend=str(handle.training_meta["backend"]),
        )


def publish(state: TrainedState, folder: RunFolder) -> Published:
    """Save the trained state in the run's folder, whole or not at all.

    Raises:
        HomeError: The file cannot be written.
    """
    with atomic_path(folder.state_path) as temporary:
        state.save(temporary)
    published = Published(state_path=folder.state_path, state_sha256=sha256_of(folder.state_path))
    logger.info("state saved: %s (sha256 %s)", published.state_path, published.state_sha256)
    return published


def evaluate(recipe: Recipe, state: TrainedState) -> Mapping[str, float]:
    """What the recipe's evaluation says of ``state``, loaded into a new model on the CPU; empty without one.

    The figures are those of the published state, also where the run was cancelled inside an epoch.
    """
    if recipe.evaluate is None:
        return {}
    model = recipe.model(torch.device("cpu"))
    state.load_into(model)
    return {name: float(value) for name, value in recipe.evaluate(model).items()}  # as after each epoch


def report(
    run_id: str, prepared: Prepared, trained: Trained, published: Published | None, evaluation: Mapping[str, float]
) -> TrainResult:
    """Everything that is known of a run that has ended."""
    last = trained.metrics[-1] if trained.metrics else None
    totals = trained.totals
    return TrainResult(
        run_id=run_id,
        attempt=1,
        status=trained.status,
        recipe=prepared.params.recipe,
        policy=prepared.params.policy,
        backend=trained.backend,
        devices=trained.devices,
        workers="thread",
        epochs=len(trained.metrics),
        avg_loss=None if last is None else last.avg_loss,
        eval=evaluation,
        num_samples=totals.num_samples,
        num_batches=totals.num_batches,
        num_syncs=trained.num_syncs,
        capacity_efficiency=totals.capacity_efficiency,
        wall_s=totals.wall_s,
        state_path=None if published is None else str(published.state_path),
        state_sha256=None if published is None else published.state_sha256,
    )


def _fill_in(params: RunParams, recipe: Recipe) -> RunParams:
    return params.model_copy(
        update={
            "epochs": params.epochs or recipe.epochs,
            "batch_size": params.batch_size or recipe.batch_size,
            "lr": params.lr or recipe.lr,
        }
    )


def _follow(handle: DdpHandle, watcher: Watcher, stop_requested: Callable[[], bool]) -> tuple[EpochMetrics, ...]:
    """Hand epochs and looks to the watcher until training ends."""
    epochs: list[EpochMetrics] = []
    running = True
    while running:
        if stop_requested():
            handle.cancel()
        running = handle.status == "running"  # looked at before the epochs are, so that none is missed
        waited = handle.next_metrics(timeout_s=LOOK_EVERY_S)
        for metrics in [*([] if waited is None else [waited]), *handle.poll_metrics()]:
            epochs.append(metrics)
            watcher.epoch_ended(metrics)
        watcher.looked(handle)
    return tuple(epochs)


def _join(handle: DdpHandle) -> tuple[TrainedState | None, FlodlError | None]:
    try:
        with warnings.catch_warnings():
            # The handle names the workers that failed, and so does the result.
            warnings.simplefilter("ignore", WorkerFailureWarning)
            return handle.join(), None
    except FlodlError as error:
        logger.exception("the run failed")
        # where a callback failed and the workers did not, the error carries what they trained
        return (error.state if isinstance(error, WorkerError) else None), error


def _status(handle: DdpHandle, error: FlodlError | None) -> Status:
    if error is not None or handle.failures:
        return "failed"
    return "cancelled" if handle.status == "cancelled" else "completed"
