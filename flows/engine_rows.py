"""From the engine's events and epochs to rows of the store."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from flodl_core import (
    AnchorChanged,
    EpochEnded,
    EpochMetrics,
    Event,
    GuardChanged,
    RunEnded,
    RunStarted,
    SnapshotLate,
    StepWindow,
    SyncEvent,
    Throttled,
    WorkerLost,
)
from flodl_store.rows import NewEpoch, NewEpochRank, NewEvent, NewStep

KINDS: Mapping[type[Any], str] = {
    RunStarted: "run_started",
    SyncEvent: "sync",
    AnchorChanged: "anchor_changed",
    GuardChanged: "guard_changed",
    EpochEnded: "epoch_ended",
    Throttled: "throttled",
    SnapshotLate: "snapshot_late",
    WorkerLost: "worker_lost",
    RunEnded: "run_ended",
}
_STEP_FIELDS = tuple(field.name for field in fields(NewStep) if field.name != "wall_time")
_PAYLOAD_FIELDS = {
    kind: tuple(field.name for field in fields(kind) if field.name not in ("time_s", "rank")) for kind in KINDS
}


def event_row(event: Event, started_at: datetime) -> NewStep | NewEvent:
    """The row that ``event`` becomes.

    Args:
        event: The engine's.
        started_at: When the engine's clock was at 0, aware.
    """
    wall_time = started_at + timedelta(seconds=event.time_s)
    if isinstance(event, StepWindow):
        return NewStep(wall_time=wall_time, **_values(event, _STEP_FIELDS))
    kind = type(event)
    return NewEvent(
        kind=KINDS[kind],
        rank=getattr(event, "rank", None),
        time_s=event.time_s,
        wall_time=wall_time,
        payload=_values(event, _PAYLOAD_FIELDS[kind]),
    )


def epoch_row(metrics: EpochMetrics, time_s: float, started_at: datetime) -> NewEpoch:
    """The row that an epoch becomes.

    Args:
        metrics: The engine's.
        time_s: When the epoch ended, on the engine's clock.
        started_at: When that clock was at 0, aware.
    """
    return NewEpoch(
        epoch=metrics.epoch,
        time_s=time_s,
        wall_time=started_at + timedelta(seconds=time_s),
        avg_loss=metrics.avg_loss,
        epoch_ms=metrics.epoch_ms,
        lr=metrics.lr,
        num_batches=metrics.num_batches,
        num_samples=metrics.num_samples,
        capacity_efficiency=metrics.capacity_efficiency,
        eval=metrics.eval,
        scalars=metrics.scalars,
        ranks=tuple(_rank_row(metrics, rank) for rank in range(len(metrics.devices))),
    )


def _rank_row(metrics: EpochMetrics, rank: int) -> NewEpochRank:
    return NewEpochRank(
        rank=rank,
        device=metrics.devices[rank],
        loss=metrics.per_rank_loss[rank],
        samples_per_s=1e3 * metrics.per_rank_throughput[rank],
        batch_share=metrics.per_rank_batch_share[rank],
        busy_ms=metrics.per_rank_busy_ms[rank],
        scalars=metrics.per_rank[rank],
    )


def _values(event: Event, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(event, name) for name in names}
