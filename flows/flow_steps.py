"""The steps of a run under Prefect: each one a task, and all that goes with them."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from flodl_core import DdpHandle, EpochMetrics, FlodlError
from flodl_store.artifacts import save_artifact
from flodl_store.database import Database, open_database
from flodl_store.errors import StoreError
from flodl_store.home import RunFolder, create_run_folder
from flodl_store.params import RunParams
from flows.errors import FlowError
from flows.one_line import one_line
from flows.outcome import problem_of
from flows.prefect_artifacts import ProgressArtifact, publish_epochs, publish_link
from flows.prefect_logs import logging_to_prefect
from flows.recording import RecordedRun, Watchers
from flows.run_log import logging_to
from flows.run_results import Prepared, Published, Trained
from flows.training import evaluate, prepare, publish, train

logger = logging.getLogger(__name__)

# What the steps hand on stays in this process: nothing is hashed for a cache and nothing written to a file.
_prepare = task(cache_policy=NO_CACHE, persist_result=False)(prepare)
_train = task(cache_policy=NO_CACHE, persist_result=False)(train)
_publish = task(cache_policy=NO_CACHE, persist_result=False)(publish)
_evaluate = task(cache_policy=NO_CACHE, persist_result=False)(evaluate)


class FlowSteps:
    """One run under Prefect. ``run`` is called on one thread, ``look`` on another while that goes on.

    Args:
        params: What is asked for.
        run_id: The run's name; its row is taken over where it is pending.
        flow_run_id: Prefect's name of the flow run.
        started_in: Folder where flodl was started.
    """

    def __init__(self, params: RunParams, *, run_id: str, flow_run_id: str | None, started_in: Path) -> None:
        self._params = params
        self._run_id = run_id
        self._flow_run_id = flow_run_id
        self._started_in = started_in
        self._handle: DdpHandle | None = None
        self._progress: ProgressArtifact | None = None

    # What a watcher is told

    def started(self, handle: DdpHandle) -> None:
        """Workers have been started."""
        self._handle = handle

    def looked(self, handle: DdpHandle) -> None:
        """Nothing: a request to Prefect would hold up training's owner."""

    def epoch_ended(self, metrics: EpochMetrics) -> None:
        """Log a line, which Prefect shows."""
        figures = "".join(f", {name} {value:.4g}" for name, value in metrics.eval.items())
        logger.info("epoch %d: loss %.4g%s", metrics.epoch + 1, metrics.avg_loss, figures)

    def look(self, *, at_once: bool = False) -> None:
        """Tell Prefect how far the run is. A server that is slow to answer holds up nothing else.

        Args:
            at_once: Also where that was done a moment ago.
        """
        if self._handle is None:
            return
        if self._progress is None:
            self._progress = ProgressArtifact(self._run_id)
        self._progress.tell(self._handle, at_once=at_once)

    def run(self, is_stopping: Callable[[], bool]) -> State[Any]:
        """Train, record, save and evaluate.

        Args:
            is_stopping: Says whether the flow is to end.

        Returns:
            How the flow ended, in Prefect's terms.
        """
        try:
            with open_database() as db:
                folder = create_run_folder(self._run_id)
                with logging_to(folder.log_path), logging_to_prefect(), self._recorded(db) as recorded:
                    state = self._steps(recorded, folder, is_stopping)
                _record_log(db, folder)
                return state
        except StoreError as error:
            return Failed(message=str(error))

    def _recorded(self, db: Database) -> RecordedRun:
        return RecordedRun.begin(
            db, self._params, run_id=self._run_id, started_in=self._started_in, flow_run_id=self._flow_run_id
        )

    def _steps(self, recorded: RecordedRun, folder: RunFolder, is_stopping: Callable[[], bool]) -> State[Any]:
        publish_link(self._run_id)
        try:
            prepared = _prepare(self._params, started_in=self._started_in)
            recorded.prepared(prepared.params)
            trained = _train(
                prepared,
                watcher=Watchers(recorded, self),
                stop_requested=lambda: is_stopping() or recorded.cancel_requested,
            )
        except (FlowError, FlodlError) as error:
            recorded.end("failed", error=str(error))
            return Failed(message=str(error))
        return self._finish(prepared, trained, recorded, folder)

    def _finish(self, prepared: Prepared, trained: Trained, recorded: RecordedRun, folder: RunFolder) -> State[Any]:
        problem = problem_of(trained)
        evaluation: Mapping[str, float] = {}
        published: Published | None = None
        if trained.state is not None:
            published = _publish(trained.state, folder)
            try:
                evaluation = _evaluate(prepared.recipe, trained.state)
            except Exception as error:
                logger.exception("the evaluation failed")
                problem = problem or f"the state is saved, but its evaluation failed: {one_line(error)}"
        publish_epochs(self._run_id, trained.metrics)
        status = trained.status if problem is None else "failed"
        recorded.end(status, error=problem, trained=trained, evaluation=evaluation, published=published)
        return _state(status, problem, evaluation)


def _record_log(db: Database, folder: RunFolder) -> None:
    """After the last line of the log, so that its checksum holds."""
    try:
        save_artifact(db, folder.run_id, "log", folder.log_path)
    except StoreError as error:
        logger.warning("the database does not know of the log: %s", error)


def _state(status: str, problem: str | None, evaluation: Mapping[str, float]) -> State[Any]:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in evaluation.items()) or None
    match status:
        case "completed":
            return Completed(message=figures)
        case "cancelled":
            return Cancelled(message="what was trained is saved")
    return Failed(message=problem)
