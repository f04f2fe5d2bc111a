"""A run as it is shown: its row, with the status that a heartbeat tells and with its workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, and_, not_, select

from flodl_store.nonfinite import as_numbers, put_back
from flodl_store.tables import Table

RunStatus = Literal["pending", "running", "completed", "failed", "cancelled", "lost"]
STATUSES: tuple[RunStatus, ...] = ("pending", "running", "completed", "failed", "cancelled", "lost")
UNDER_WAY = ("pending", "running")
"""Stored statuses of a run that has not ended."""
LOST_AFTER_S = 30.0
"""Age of a heartbeat from which on a run counts as lost."""

_RUN = Table.metadata.tables["run"]
_WORKER = Table.metadata.tables["worker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One rank and its device.

    Attributes:
        rank: From 0.
        device: As it was asked for: ``cuda:0``, ``cpu@2.5``.
        device_name: What it is, with its emulated slowness, or None.
        memory_bytes: The device's own memory, or None.
        slowdown: Factor by which it is slowed on purpose; 1.0 for none.
    """

    rank: int
    device: str
    device_name: str | None = None
    memory_bytes: int | None = None
    slowdown: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run. Times are aware and in UTC; what is not known yet is None.

    Attributes:
        id: 26 characters that sort by the time of their making.
        status: ``lost`` where the run has not ended and its heartbeat is older than 30 s.
        epoch: Epochs trained to their end.
        avg_loss: Mean training loss of the last of them; may be NaN.
        total_samples: Samples that all epochs have together.
        num_samples: Samples trained so far.
        capacity_efficiency: How busy the devices were kept.
        anchor: Batches that the slowest rank does between two averages.
        global_step: Batches trained by all ranks.
        wall_s: From the first batch's start to the last one's end.
        eval: What the evaluation says of the published state; empty before there is one.
        config: Every parameter.
        training_meta: How the engine was set up.
        last_seq: The newest ``seq`` of its steps, epochs and events.
        cancel_requested_at: When somebody asked for its end.
    """

    id: str
    name: str | None
    status: RunStatus
    recipe: str
    policy: str
    backend: str | None
    world_size: int | None
    batch_size: int | None
    num_epochs: int | None
    epoch: int
    avg_loss: float | None
    total_samples: int | None
    num_samples: int
    num_batches: int
    num_syncs: int
    capacity_efficiency: float | None
    anchor: int | None
    global_step: int
    wall_s: float | None
    eval: Mapping[str, float]
    seed: int
    config: Mapping[str, Any]
    training_meta: Mapping[str, Any]
    graph_hash: str | None
    version: str | None
    git_commit: str | None
    flow_run_id: str | None
    parent_run_id: str | None
    tags: tuple[str, ...]
    notes: str | None
    error: str | None
    attempt: int
    last_seq: int
    created_at: datetime
    started_at: datetime | None
    heartbeat_at: datetime | None
    ended_at: datetime | None
    cancel_requested_at: datetime | None
    workers: tuple[WorkerView, ...]


_OWN_COLUMNS = tuple(_RUN.c[field.name] for field in fields(RunView) if field.name != "workers")


def load_views(connection: Connection, ids: Sequence[str], *, now: datetime) -> list[RunView]:
    """The runs of these ids that there are, newest first."""
    rows = connection.execute(
        select(*_OWN_COLUMNS, _RUN.c.nonfinite).where(_RUN.c.id.in_(ids)).order_by(_RUN.c.id.desc())
    ).mappings()
    workers: dict[str, list[WorkerView]] = {}
    query = select(_WORKER).where(_WORKER.c.run_id.in_(ids)).order_by(_WORKER.c.run_id, _WORKER.c.rank)
    for row in connection.execute(query).mappings():
        columns = dict(row)
        workers.setdefault(columns.pop("run_id"), []).append(WorkerView(**columns))
    return [_view(dict(row), workers.get(row["id"], ()), now) for row in rows]


def status_is(status: RunStatus, *, now: datetime) -> ColumnElement[bool]:
    """Where a run is shown with ``status``."""
    overdue = and_(
        _RUN.c.status.in_(UNDER_WAY),
        _RUN.c.heartbeat_at.is_not(None),
        _RUN.c.heartbeat_at < now - timedelta(seconds=LOST_AFTER_S),
    )
    if status == "lost":
        return overdue
    if status in UNDER_WAY:
        # Not just NOT overdue: a heartbeat that is NULL makes that NULL.
        return and_(_RUN.c.status == status, (_RUN.c.heartbeat_at.is_(None)) | not_(overdue))
    return _RUN.c.status == status


def _view(row: dict[str, Any], workers: Sequence[WorkerView], now: datetime) -> RunView:
    put_back(row)
    row["status"] = _shown_status(row["status"], row["heartbeat_at"], now)
    row["eval"] = as_numbers(row["eval"])
    row["tags"] = tuple(row["tags"])
    return RunView(**row, workers=tuple(workers))


def _shown_status(stored: RunStatus, heartbeat_at: datetime | None, now: datetime) -> RunStatus:
    if stored not in UNDER_WAY or heartbeat_at is None:
        return stored
    return "lost" if now - heartbeat_at > timedelta(seconds=LOST_AFTER_S) else stored
