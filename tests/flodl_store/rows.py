"""Runs and rows as tests need them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from flodl_store.database import Database
from flodl_store.rows import NewEpoch, NewEpochRank, NewEvent, NewStep
from flodl_store.run_id import new_run_id
from flodl_store.runs import NewRun, RunStart, RunView, WorkerView, create_run, start_run

MOMENT = datetime(2026, 1, 2, 3, 4, 6, 250000, tzinfo=UTC)
NEW = NewRun(recipe="digits", policy="cadence", seed=1, config={"epochs": 3})
START = RunStart(
    backend="cpu",
    batch_size=16,
    num_epochs=3,
    total_samples=300,
    config={"epochs": 3, "lr": 0.1},
    training_meta={"mode": "ddp"},
    workers=(WorkerView(rank=0, device="cpu"), WorkerView(rank=1, device="cpu@2.5", slowdown=2.5)),
)


def new_run(db: Database, **others: Any) -> RunView:
    """A pending run."""
    return create_run(db, replace(NEW, **{"id": new_run_id(), **others}))


def running(db: Database, **others: Any) -> str:
    """The id of a run that has started."""
    run = new_run(db, **others)
    start_run(db, run.id, START)
    return run.id


def step(number: int = 0, **others: Any) -> NewStep:
    """A step row; ``number`` tells it from others."""
    row = NewStep(
        rank=number % 2,
        epoch=0,
        global_step=number,
        time_s=number / 8,
        wall_time=MOMENT,
        loss=1 / (1 + number),
        lr=0.1,
        samples_per_s=100.0,
        num_batches=2,
        num_samples=32,
        busy_ms=320.0,
    )
    return replace(row, **others)


def event(number: int = 0, **others: Any) -> NewEvent:
    """An average."""
    row = NewEvent(kind="sync", rank=None, time_s=number / 8, wall_time=MOMENT, payload={"round": number})
    return replace(row, **others)


def epoch(number: int = 0, **others: Any) -> NewEpoch:
    """An epoch of two ranks."""
    row = NewEpoch(
        epoch=number,
        time_s=1.5,
        wall_time=MOMENT,
        avg_loss=0.5,
        epoch_ms=1500.0,
        lr=0.1,
        num_batches=7,
        num_samples=100,
        capacity_efficiency=0.98,
        eval={"accuracy": 0.9, "loss": 0.4},
        scalars={"grad": 2.0},
        ranks=tuple(
            NewEpochRank(
                rank=rank,
                device="cpu",
                loss=0.5,
                samples_per_s=100.0,
                batch_share=0.5,
                busy_ms=700.0,
                scalars={"grad": 1.0 + rank},
            )
            for rank in range(2)
        ),
    )
    return replace(row, **others)
