"""A run and its record: the row in the database, from pending to its end, with a recorder beside it."""

import logging
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import torch

from flodl_core import DdpHandle, EpochMetrics, parse_worker_spec
from flodl_store.artifacts import save_artifact
from flodl_store.database import Database
from flodl_store.errors import StoreError
from flodl_store.params import RunParams
from flodl_store.runs import EndStatus, NewRun, RunProgress, RunStart, WorkerView, claim_run, withdraw_run
from flows.git_commit import git_commit
from flows.graph_keeper import GraphKeeper
from flows.recorder import DRAIN_S, Recorder, run_progress
from flows.run_results import Published, Trained
from flows.scribe import RunEnd
from flows.training import Watcher

logger = logging.getLogger(__name__)


class RecordedRun:
    """A watcher (see ``training.Watcher``) that records what it sees. Made, used and closed on one thread.

    Make it with ``begin``. As a context manager it stops the recorder when it is left; a run that was neither ended nor
    withdrawn by then is ``failed`` if an error leaves with it.

    Args:
        db: Where to; open until the run is closed.
        run_id: The whole id of a run that exists and is pending.
        params: What it was asked to do.
    """

    def __init__(self, db: Database, run_id: str, params: RunParams) -> None:
        self._db = db
        self._params = params
        self._recorder = Recorder(db, run_id)
        self._graph: GraphKeeper | None = None
        self._is_over = False
        self.run_id = run_id
        """The run's name."""

    @classmethod
    def begin(
        cls, db: Database, params: RunParams, *, run_id: str, started_in: Path, flow_run_id: str | None = None
    ) -> Self:
        """Write the run's row as pending, or take over the one that is pending, and let it beat.

        Args:
            db: Where to.
            params: What is asked for.
            run_id: The run's name.
            started_in: Folder whose version of the code is kept.
            flow_run_id: The Prefect flow run that trains, if one does.

        Raises:
            RunStateError: There is a run of that name that is not pending.
            DatabaseUnreachableError: The database does not answer.
        """
        new = NewRun.of(
            params,
            id=run_id,
            version=version("flodl"),
            git_commit=git_commit(started_in),
            flow_run_id=flow_run_id,
        )
        claim_run(db, new)
        try:
            return cls(db, run_id, params)
        except BaseException:  # a signal, say
            withdraw_run(db, run_id)
            raise

    def prepared(self, params: RunParams) -> None:
        """The parameters are these, the recipe's defaults filled in."""
        self._params = params

    # What a watcher is told

    def started(self, handle: DdpHandle) -> None:
        """Workers have been started."""
        self._recorder.follow(handle, run_start(handle, self._params))
        self._graph = GraphKeeper(self._db, self.run_id, handle)

    def looked(self, handle: DdpHandle) -> None:
        """Nothing: the recorder has its own clock."""

    def epoch_ended(self, metrics: EpochMetrics) -> None:
        """An epoch has been trained, averaged and evaluated."""
        self._recorder.epoch_ended(metrics)

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked, in the database, for the run's end; at most about a second old."""
        return self._recorder.cancel_requested

    @property
    def has_trained(self) -> bool:
        """Whether workers have been started."""
        return self._graph is not None

    @property
    def failure(self) -> str | None:
        """Why, at the moment or for good, nothing is recorded; else None."""
        return self._recorder.failure

    # The end

    def end(
        self,
        status: EndStatus,
        *,
        error: str | None = None,
        trained: Trained | None = None,
        evaluation: Mapping[str, float] | None = None,
        published: Published | None = None,
    ) -> str | None:
        """Record the end and stop recording.

        Args:
            status: How the run ended.
            error: Why it failed, in one line.
            trained: What training came to, or None where it never began.
            evaluation: What the evaluation says of the published state.
            published: The trained state's file, if there is one.

        Returns:
            What the database lacks of the run and why, in one line, or None.
        """
        self._is_over = True
        if self._graph is not None:
            self._graph.join()
        lacking = None if published is None else self._save_state(published)
        end = RunEnd(
            status=status,
            error=error,
            progress=None if trained is None else final_progress(trained),
            evaluation=evaluation or {},
        )
        return self._recorder.close(end, limit_s=DRAIN_S) or lacking

    def withdraw(self) -> None:
        """Forget the run: it never started. Where the database does not answer it stays, and is shown as lost."""
        self._is_over = True
        self._recorder.close(None, limit_s=0.0)
        try:
            withdraw_run(self._db, self.run_id)
        except StoreError as error:
            logger.warning("the run stays in the database although it never started: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        if error is None:
            self._recorder.close(None)
        else:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self.end("failed" if isinstance(error, Exception) else "cancelled", error=text)

    def _save_state(self, published: Published) -> str | None:
        try:
            save_artifact(self._db, self.run_id, "state", published.state_path, sha256=published.state_sha256)
        except StoreError as error:
            logger.warning("the state is saved, but the database does not know: %s", error)
            return f"the database does not know of the saved state: {error}"
        return None


class Watchers:
    """Several watchers as one, told in this order."""

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers

    def started(self, handle: DdpHandle) -> None:
        """Workers have been started."""
        for watcher in self._watchers:
            watcher.started(handle)

    def looked(self, handle: DdpHandle) -> None:
        """A moment has passed."""
        for watcher in self._watchers:
            watcher.looked(handle)

    def epoch_ended(self, metrics: EpochMetrics) -> None:
        """An epoch has been trained, averaged and evaluated."""
        for watcher in self._watchers:
            watcher.epoch_ended(metrics)


def run_start(handle: DdpHandle, params: RunParams) -> RunStart:
    """What is known of a run once its workers have been started."""
    meta = handle.training_meta
    num_epochs = cast("int", meta["num_epochs"])
    return RunStart(
        backend=str(meta["backend"]),
        batch_size=cast("int", meta["batch_size"]),
        num_epochs=num_epochs,
        total_samples=num_epochs * cast("int", meta["num_samples"]),
        config=params.model_dump(mode="json"),
        training_meta=meta,
        workers=tuple(_worker(rank, device) for rank, device in enumerate(handle.devices)),
    )


def final_progress(trained: Trained) -> RunProgress:
    """How far a run came."""
    last = trained.metrics[-1] if trained.metrics else None
    avg_loss = None if last is None else last.avg_loss
    return run_progress(trained.progress, num_epochs=len(trained.metrics), avg_loss=avg_loss)


def _worker(rank: int, device: str) -> WorkerView:
    spec = parse_worker_spec(device)
    name, memory_bytes = None, None
    if spec.device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(torch.device(spec.device))
        name, memory_bytes = properties.name, properties.total_memory
    return WorkerView(rank=rank, device=device, device_name=name, memory_bytes=memory_bytes, slowdown=spec.slowdown)
