"""What Prefect's pages show of a run: how far it is, where its own page is, what each epoch brought."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from flodl_core import DdpHandle, EpochMetrics

logger = logging.getLogger(__name__)

UPDATE_EVERY_S = 2.0
"""How often progress is told at most: each time is a request."""
DEFAULT_DASHBOARD_URL = "http://127.0.0.1:8000"


class ProgressArtifact:
    """A bar on Prefect's page of the flow run. Owner: the thread that runs the flow.

    Args:
        run_id: The run's name.
        clock: Tells seconds.
    """

    def __init__(self, run_id: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_id = run_id
        self._clock = clock
        self._id: UUID | None = None
        self._told_s = -UPDATE_EVERY_S
        with _without_harm():
            key = f"progress-{run_id.lower()}"
            self._id = _as_uuid(create_progress_artifact(0.0, key=key, description=f"Run {run_id}"))

    def tell(self, handle: DdpHandle, *, at_once: bool = False) -> None:
        """Bring the bar up to date, unless that was done a moment ago."""
        now_s = self._clock()
        if self._id is None or (now_s - self._told_s < UPDATE_EVERY_S and not at_once):
            return
        self._told_s = now_s
        progress = handle.progress()
        share = progress.totals.num_samples / (progress.num_epochs * progress.epoch_size)
        epoch = min(progress.epoch + 1, progress.num_epochs)
        with _without_harm():
            update_progress_artifact(
                self._id, progress=min(100.0, 100 * share), description=f"epoch {epoch}/{progress.num_epochs}"
            )


def publish_link(run_id: str) -> None:
    """A link to the run's own page."""
    url = f"{os.environ.get('FLODL_DASHBOARD_URL') or DEFAULT_DASHBOARD_URL}/runs/{run_id}"
    with _without_harm():
        create_link_artifact(url, link_text="Run page", key=f"run-{run_id.lower()}", description=f"Run {run_id}")


def publish_epochs(run_id: str, metrics: Sequence[EpochMetrics]) -> None:
    """A table with a row for each epoch; none where no epoch was trained to its end."""
    if metrics:
        with _without_harm():
            create_table_artifact(
                [_row(epoch) for epoch in metrics], key=f"epochs-{run_id.lower()}", description=f"Run {run_id}, epochs"
            )


def _row(metrics: EpochMetrics) -> dict[str, Any]:
    return {
        "epoch": metrics.epoch + 1,
        "loss": _number(metrics.avg_loss),
        **{f"eval {name}": _number(value) for name, value in metrics.eval.items()},
        "samples/s": _number(sum(metrics.per_rank_throughput) * 1000),
        "efficiency": _number(metrics.capacity_efficiency),
        "seconds": _number(metrics.epoch_ms / 1000),
    }


def _number(value: float) -> str:
    return f"{value:.4g}"  # as text, since JSON has neither NaN nor infinity


def _as_uuid(value: Any) -> UUID:
    assert isinstance(value, UUID)
    return value


@contextmanager
def _without_harm() -> Iterator[None]:
    """No run fails because a picture of it could not be drawn."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # whatever Prefect or the network raises
        logger.warning("Prefect was not told how the run goes: %s", error)
