"""A timeline of real runs: all ways of averaging, runs that stop, fail or lose a worker, two at a time."""

from __future__ import annotations

import csv
import json
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flodl_core import (
    ApplyPolicy,
    AverageBackend,
    FlodlError,
    Timeline,
    TimelineBatch,
    WorkerError,
    WorkerFailureWarning,
)
from flodl_core.timeline.record import TimelineRecord
from tests.flodl_core.training import (
    LIMIT_S,
    Samples,
    configure,
    every_way,
    mean_squared_error,
    numbered_samples,
    train,
)


def kinds(timeline: Timeline) -> set[str]:
    return {event.kind for event in timeline.events}


def check(record: TimelineRecord) -> None:
    """Every lane divides all of its time, and events come by time."""
    for lane in record.lanes:
        assert lane.spans[0].start_s == 0.0
        assert lane.train_ms + sum(lane.idle_ms.values()) == pytest.approx(lane.length_ms, abs=1e-3)
    times = [event.time_s for event in record.events]
    assert times == sorted(times)


def save_all(timeline: Timeline, folder: Path) -> None:
    """Export in every format, and read back what can be."""
    timeline.save_html(folder / "t.html")
    timeline.save_json(folder / "t.json")
    json.loads((folder / "t.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    for path in timeline.save_csv(folder / "t.csv"):
        rows = list(csv.reader(path.read_text().splitlines()))
        assert {len(row) for row in rows} == {len(rows[0])}
    assert list(folder.glob("*.part")) == []


@every_way
def test_every_way_of_averaging_is_told(policy: ApplyPolicy, backend: AverageBackend, tmp_path: Path) -> None:
    timeline = Timeline(interval_ms=10)
    builder = configure(numbered_samples(96), policy=policy, backend=backend, devices=["cpu", "cpu@2.5"])
    builder.eval_fn(lambda _: {"figure": 1.0}).checkpoint_fn(lambda _version, _model: None)
    train(builder.timeline(timeline))
    expected = {"run started", "worker joined", "epoch start", "epoch end", "sync", "eval", "checkpoint", "run ended"}
    assert expected | ({"average"} if backend == AverageBackend.CPU else set()) <= kinds(timeline)
    record = timeline.record()
    assert [lane.label for lane in record.lanes] == ["cpu", "cpu@2.5"]
    assert all(lane.train_ms > 0 for lane in record.lanes)
    assert len(record.samples) >= 2
    check(record)
    save_all(timeline, tmp_path)


def test_a_single_device_has_a_timeline_too(tmp_path: Path) -> None:
    timeline = Timeline()
    train(configure(numbered_samples(32), devices=["cpu"]).timeline(timeline))
    assert {"epoch start", "epoch end", "run ended"} <= kinds(timeline)
    assert len(timeline.record().lanes) == 1
    check(timeline.record())
    save_all(timeline, tmp_path)


def test_a_run_that_is_stopped_still_exports(tmp_path: Path) -> None:
    timeline = Timeline()
    started = threading.Event()

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        started.set()
        return mean_squared_error(model, batch)

    with configure(numbered_samples(640), train_fn=train_fn, num_epochs=1000).timeline(timeline).run() as handle:
        assert started.wait(LIMIT_S)
        save_all(timeline, tmp_path)  # while it runs
        handle.cancel()
        handle.join(LIMIT_S)
    assert timeline.events[-1].kind == "run ended"
    assert timeline.events[-1].fields["status"] == "cancelled"
    check(timeline.record())
    save_all(timeline, tmp_path)


@pytest.mark.parametrize("backend", [AverageBackend.GLOO, AverageBackend.CPU])
def test_a_run_that_loses_a_worker_still_exports(backend: AverageBackend, tmp_path: Path) -> None:
    timeline = Timeline()

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        if threading.current_thread().name == "ddp-worker-1":
            raise RuntimeError("<b>out of memory</b>")
        return mean_squared_error(model, batch)

    builder = configure(numbered_samples(64), train_fn=train_fn, backend=backend).timeline(timeline)
    with builder.run() as handle, pytest.warns(WorkerFailureWarning):
        handle.join(LIMIT_S)
    (lost,) = (event for event in timeline.events if event.kind == "worker lost")
    assert lost.rank == 1
    lanes = timeline.record().lanes
    assert lanes[1].spans[-1].end_s == pytest.approx(lost.time_s)
    save_all(timeline, tmp_path)
    page = (tmp_path / "t.html").read_text()
    assert "&lt;b&gt;out of memory&lt;/b&gt;" in page
    assert "<b>" not in page


def test_a_run_that_fails_still_exports(tmp_path: Path) -> None:
    timeline = Timeline()

    def train_fn(_model: nn.Module, _batch: Samples) -> Tensor:
        raise RuntimeError("no")

    with (
        configure(numbered_samples(64), train_fn=train_fn).timeline(timeline).run() as handle,
        pytest.raises(WorkerError),
    ):
        handle.join(LIMIT_S)
    assert timeline.events[-1].fields["status"] == "failed"
    assert "epoch end" not in kinds(timeline)
    save_all(timeline, tmp_path)


def test_a_callback_that_fails_is_on_the_timeline() -> None:
    timeline = Timeline()

    def fail(_: nn.Module) -> dict[str, float]:
        raise OSError("the test set is gone")

    with (
        configure(numbered_samples(64), num_epochs=1).eval_fn(fail).timeline(timeline).run() as handle,
        pytest.raises(WorkerError),
    ):
        handle.join(LIMIT_S)
    (failed,) = (event for event in timeline.events if event.kind == "eval")
    assert failed.fields["error"] == "OSError: the test set is gone"


def test_losses_that_are_not_numbers_do_not_spoil_the_files(tmp_path: Path) -> None:
    timeline = Timeline()

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        factor = float("nan") if threading.current_thread().name == "ddp-worker-1" else 1.0
        return factor * mean_squared_error(model, batch)

    builder = configure(numbered_samples(64), train_fn=train_fn, num_epochs=1).timeline(timeline)
    with builder.run() as handle:
        timeline.mark("start", nan=float("nan"), far=float("-inf"))
        handle.join(LIMIT_S)
    save_all(timeline, tmp_path)
    plain = json.loads((tmp_path / "t.json").read_text())
    (mark,) = (event for event in plain["events"] if event["kind"] == "mark")
    assert mark["fields"] == {"nan": "NaN", "far": "-Infinity"}


def test_two_runs_in_one_process_have_a_timeline_each() -> None:
    timelines = [Timeline(), Timeline()]
    samples = numbered_samples(64)
    handles = [
        configure(samples, devices=["cpu"] * (number + 1)).timeline(timeline).run()
        for number, timeline in enumerate(timelines)
    ]
    for handle in handles:
        with handle:
            handle.join(LIMIT_S)
    assert [len(timeline.record().lanes) for timeline in timelines] == [1, 2]
    for timeline in timelines:
        assert [event.kind for event in timeline.events].count("run ended") == 1


def test_a_timeline_that_has_seen_a_run_is_refused_before_anything_starts() -> None:
    timeline = Timeline()
    train(configure(numbered_samples(32)).timeline(timeline))
    with pytest.raises(FlodlError, match="make a new Timeline"):
        configure(numbered_samples(32)).timeline(timeline).run()


def test_training_does_not_wait_for_a_reader() -> None:
    timeline = Timeline(interval_ms=10)
    with timeline.subscribe(limit=1) as live:  # nobody reads before the end
        train(configure(numbered_samples(320), num_epochs=3).timeline(timeline))
        batches: list[TimelineBatch] = list(live)
    assert len(batches) == 1
    assert batches[0].num_dropped == len(timeline.events) + len(timeline.samples) - 1


def test_a_sync_run_is_the_same_with_and_without_a_timeline() -> None:
    def params(timeline: Timeline | None) -> list[Tensor]:
        builder = configure(numbered_samples(64), policy=ApplyPolicy.SYNC, backend=AverageBackend.GLOO)
        outcome = train(builder if timeline is None else builder.timeline(timeline))
        return list(outcome.state.params.values())

    for plain, watched in zip(params(None), params(Timeline(interval_ms=10)), strict=True):
        assert torch.equal(plain, watched)
