"""Nothing that the engine tells is lost on its way to a row."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import get_args

from flodl_core import Event, StepWindow, WorkerLost
from flodl_store.plain_json import dump_json
from flodl_store.rows import NewEvent, NewStep
from flows.engine_rows import KINDS, epoch_row, event_row
from tests.flows.engine_events import EPOCH, STEP, SYNC

START = datetime(2026, 1, 2, tzinfo=UTC)


def test_every_kind_of_event_becomes_a_row() -> None:
    assert {*KINDS, StepWindow} == {*get_args(Event)}
    assert len({*KINDS.values()}) == len(KINDS)


def test_a_step_window_is_a_step() -> None:
    row = event_row(STEP, START)
    assert isinstance(row, NewStep)
    kept = {field.name for field in fields(STEP)} - {"start_s", "end_s", "idle"}  # the record goes without them
    assert {name: getattr(row, name) for name in kept} == {name: getattr(STEP, name) for name in kept}
    assert row.wall_time == START + timedelta(seconds=1)


def test_an_average_keeps_all_that_it_says() -> None:
    row = event_row(SYNC, START)
    assert isinstance(row, NewEvent)
    assert (row.kind, row.rank, row.time_s) == ("sync", None, 1.5)
    assert {**row.payload, "time_s": 1.5} == {field.name: getattr(SYNC, field.name) for field in fields(SYNC)}
    payload = json.loads(dump_json(row.payload))
    assert payload["divergence"] == {"0": 0.01, "1": 0.02}
    assert payload["cosine"] == {"0": 0.999, "1": 0.998}
    assert payload["magnitude"] == {"0": -0.5, "1": 0.25}


def test_what_happened_to_a_rank_names_it() -> None:
    row = event_row(WorkerLost(time_s=2.0, rank=1, error="boom"), START)
    assert isinstance(row, NewEvent)
    assert (row.kind, row.rank, row.payload) == ("worker_lost", 1, {"error": "boom"})


def test_an_epoch_keeps_all_that_it_says() -> None:
    row = epoch_row(EPOCH, 2.5, START)
    assert (row.epoch, row.time_s, row.wall_time) == (0, 2.5, START + timedelta(seconds=2.5))
    assert (row.avg_loss, row.eval, row.scalars, row.capacity_efficiency) == (
        0.5,
        {"accuracy": 0.9},
        {"grad": 1.5},
        0.97,
    )
    first, second = row.ranks
    assert (first.rank, first.device, first.loss, first.samples_per_s, first.scalars) == (
        0,
        "cpu",
        0.4,
        160.0,
        {"grad": 1.0},
    )
    assert (second.rank, second.samples_per_s, second.scalars) == (1, 80.0, {})
    assert second.loss is not None
    assert math.isnan(second.loss)
