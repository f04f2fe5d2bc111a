"""``DdpHandle``: what the owner of a run holds."""

import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from flodl_core.epoch_metrics import EpochMetrics
from flodl_core.errors import FlodlError, WorkerError, WorkerFailure, WorkerFailureWarning, error_text
from flodl_core.events import Event
from flodl_core.monitor import Monitor
from flodl_core.run import Progress, Run
from flodl_core.trained_state import TrainedState

LEAVE_S = 30.0
"""How long leaving the context manager waits for batches under way."""
_INSTEAD = {
    "join()": "return, and join elsewhere",
    "metrics": "poll_metrics() takes what is there",
    "events": "poll_events() takes what is there",
}


class DdpHandle:
    """A run that goes on in the background.

    As a context manager it stops the run when it is left; so do garbage collection and the interpreter's exit. Its
    methods may be called from any thread.
    """

    def __init__(self, run: Run, *, training_meta: Mapping[str, object]) -> None:
        self._run = run
        self._training_meta = dict(training_meta)
        self._finalizer = weakref.finalize(self, run.request_stop)

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return self._run.job.world_size

    @property
    def devices(self) -> tuple[str, ...]:
        """Each worker's device, by rank, as given to the builder."""
        return tuple(str(spec) for spec in self._run.job.specs)

    @property
    def training_meta(self) -> dict[str, object]:
        """How the run was set up: plain values, for records."""
        return dict(self._training_meta)

    @property
    def graph_hash(self) -> str:
        """Identity of the model's operators: SHA-256, 64 hexadecimal digits, the same in every process.

        The first of the three graph properties to be read waits for the first batch and then works, for about two
        seconds the first time in a process, in the reader's thread: training goes on beside it. A model that cannot be
        traced is described by its tree of modules.

        Raises:
            FlodlError: It was read by a worker of the run that has not trained its first batch.
        """
        return self._run.graph().hash

    @property
    def graph_label(self) -> str:
        """The model's class and size, in one line."""
        return self._run.graph().label

    @property
    def architecture_svg(self) -> str:
        """A picture of the model: a whole SVG file that holds no script and refers to nothing."""
        return self._run.graph().svg

    @property
    def status(self) -> str:
        """``running``, ``completed``, ``cancelled`` or ``failed``."""
        finish = self._run.finish
        return "running" if finish is None or not self._run.done.is_set() else finish.status

    @property
    def failures(self) -> tuple[WorkerFailure, ...]:
        """Workers that failed so far, in the order in which they did."""
        return tuple(self._run.coordinator.failures)

    def progress(self) -> Progress:
        """Where the run stands, at most a few tenths of a second old; exact once it has ended."""
        return self._run.progress

    def metrics(self) -> Iterator[EpochMetrics]:
        """Epochs as they end, until training ends. Each epoch is given once, to whichever reader comes first.

        Raises:
            FlodlError: It was read inside a callback of the run, which would wait for itself.
        """
        # a generator: it keeps the handle, and with it the run, alive
        while (epoch := self.next_metrics()) is not None:
            yield epoch

    def poll_metrics(self) -> list[EpochMetrics]:
        """Epochs that have ended since the last reading, without waiting."""
        return self._run.metrics.poll()

    def next_metrics(self, timeout_s: float | None = None) -> EpochMetrics | None:
        """Wait for the next epoch.

        Args:
            timeout_s: Longest wait in seconds; None waits as long as it takes.

        Returns:
            The epoch, or None at the end of training or when the time has passed.

        Raises:
            FlodlError: It was called without a limit inside a callback of the run, which would wait for itself.
        """
        if timeout_s is None:
            self._must_not_wait("metrics")
        return self._run.metrics.next(timeout_s)

    def events(self) -> Iterator[Event]:
        """What happens, as it happens and in order, until training ends. Each event is given once.

        Raises:
            FlodlError: It was read inside a callback of the run, which would wait for itself.
        """
        while self._must_not_wait("events") and (event := self._run.events.next()) is not None:
            yield event

    def poll_events(self) -> list[Event]:
        """What has happened since the last reading, in order, without waiting."""
        return self._run.events.poll()

    def setup_monitor(self, monitor: Monitor) -> None:
        """Tell a monitor what is known of the run: epochs planned, how it was set up, and how to draw the model.

        The model is drawn when the monitor saves a page, not before.
        """
        run = self._run
        monitor.describe(num_epochs=run.job.num_epochs, training_meta=self._training_meta, graph=run.graph)

    def cancel(self) -> None:
        """Stop after the batches under way; ``join`` then returns what was trained. Returns at once."""
        self._run.request_stop()

    def abort_collectives(self) -> None:
        """Cancel, and wake workers that wait for others in an all-reduce: for a rank that hangs. Returns at once.

        The run still ends with the last worker: one that hangs in ``train_fn`` holds it up, and ``join`` with a time
        limit tells so.
        """
        self._run.abort_collectives()

    def join(self, timeout_s: float | None = None) -> TrainedState:
        """Wait for the end.

        Args:
            timeout_s: Longest wait in seconds; None waits as long as it takes.

        Returns:
            The average of the replicas: of all, after ``cancel`` too; of those that did not fail, with a warning.

        Raises:
            TimeoutError: Training goes on after ``timeout_s``.
            WorkerError: No worker survived, or a callback raised; the cause is attached, and in the second case what
                was trained, as ``state``.
            FlodlError: It was called inside a callback of the run, which would wait for itself.
        """
        self._must_not_wait("join()")
        if not self._run.done.wait(None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)):
            raise TimeoutError(f"training still goes on after {timeout_s:g} s: call cancel() to stop it")
        finish = self._run.finish
        assert finish is not None, "a run that is done has finished"
        if finish.error is not None:
            text = str(finish.error) if isinstance(finish.error, FlodlError) else error_text(finish.error)
            raise WorkerError(f"the run failed: {text}", self.failures, self._run.state) from finish.error
        state = self._run.state
        if state is None and self.failures:
            first = self.failures[0]
            raise WorkerError(f"the run failed: {first}", self.failures) from first.error
        if state is None:
            raise WorkerError("the run ended before anything was trained")
        if self.failures:
            lost = "; ".join(str(failure) for failure in self.failures)
            warnings.warn(f"the state is the average of the workers that survived ({lost})", WorkerFailureWarning, 2)
        return state

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()
        if self._run.owns_current_thread():
            return  # left inside a callback, for which the run waits in its turn
        if not self._run.done.wait(LEAVE_S) and error is None:
            raise TimeoutError(f"a batch has not ended {LEAVE_S:g} s after the run was cancelled")

    def _must_not_wait(self, what: str) -> bool:
        if self._run.owns_current_thread():
            raise FlodlError(f"{what} inside a callback of the run would wait for itself: {_INSTEAD[what]}")
        return True
