"""A timeline on a clock, a pulse and a machine of the test's own."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest

from flodl_core import (
    ConfigError,
    EpochEnded,
    FlodlError,
    RunEnded,
    Timeline,
    WorkerLost,
)
from flodl_core.timeline import timeline as module
from tests.flodl_core.timeline.factories import LIMIT_S, FakeMachine, Rig, average, window


def test_it_samples_at_the_start_at_each_beat_and_at_the_end() -> None:
    rig = Rig()
    timeline = rig.start()
    for _ in range(2):
        rig.clock.now_s += 0.1
        rig.pulse.beat()
    rig.clock.now_s += 0.05
    timeline.stop()
    timeline.stop()
    assert [round(sample.time_s, 9) for sample in timeline.samples] == [0.0, 0.1, 0.2, 0.25]
    assert rig.machine.num_closed == 1


def test_a_machine_that_cannot_be_read_ends_the_samples_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(machine=FakeMachine(fails_at=2))
    timeline = rig.start()
    rig.pulse._beats.put(True)
    with caplog.at_level(logging.ERROR):
        timeline.stop()
    assert "sampling has ended" in caplog.text
    timeline.on_event(average(0.5))
    assert (len(timeline.samples), len(timeline.events), rig.machine.num_closed) == (1, 1, 1)


def test_the_engines_events_are_told_in_the_timelines_words() -> None:
    rig = Rig()
    timeline = rig.start()
    timeline.on_event(window(0, 0.1, 0.3, busy_ms=190.0))
    timeline.on_event(window(1, 0.12, 0.4, busy_ms=280.0))
    timeline.on_event(average(0.5, duration_ms=4.0))
    timeline.on_event(EpochEnded(time_s=0.6, epoch=0, num_samples=64, global_step=8))
    timeline.on_event(window(0, 0.61, 0.7, busy_ms=80.0, epoch=1))
    timeline.stop()
    told = [(event.kind, event.time_s, event.rank) for event in timeline.events]
    assert told == [
        ("worker joined", 0.1, 0),
        ("epoch start", 0.1, None),
        ("worker joined", 0.12, 1),
        ("sync", 0.5, None),
        ("epoch end", 0.6, None),
        ("epoch start", 0.61, None),
    ]
    (sync,) = (event for event in timeline.events if event.kind == "sync")
    assert (round(sync.start_s, 9), sync.duration_ms) == (0.496, 4.0)
    assert sync.fields["longest_wait_ms"] == 1.0


def test_work_beside_the_training_has_its_length_and_its_error() -> None:
    rig = Rig()
    timeline = rig.start()
    with timeline.work("eval", epoch=0):
        rig.clock.now_s += 0.25
    with pytest.raises(ZeroDivisionError), timeline.work("checkpoint", version=3):
        raise ZeroDivisionError("no disk")
    timeline.stop()
    evaluated, failed = timeline.events
    assert (evaluated.kind, evaluated.start_s, evaluated.duration_ms) == ("eval", 0.0, 250.0)
    assert failed.fields == {"version": 3, "error": "ZeroDivisionError: no disk"}


def test_a_lost_workers_lane_ends_with_its_loss() -> None:
    rig = Rig()
    timeline = rig.start()
    timeline.on_event(window(0, 0.0, 0.2, busy_ms=200.0))
    timeline.on_event(WorkerLost(time_s=0.3, rank=1, error="rank 1: it broke"))
    timeline.on_event(window(1, 0.0, 0.25, busy_ms=250.0))  # its last batches are reported after its loss
    timeline.on_event(RunEnded(time_s=0.5, status="failed", global_step=2))
    timeline.stop()
    assert [lane.spans[-1].end_s for lane in timeline.record().lanes] == [0.5, 0.3]
    (lost,) = (event for event in timeline.events if event.kind == "worker lost")
    assert (lost.rank, lost.fields["error"]) == (1, "rank 1: it broke")


def test_marks_are_the_users_own() -> None:
    rig = Rig()
    with pytest.raises(FlodlError, match="has not begun"):
        rig.timeline.mark("too soon")
    timeline = rig.start()
    rig.clock.now_s += 1.5
    timeline.mark("unfrozen", layers=3, name="head", share=0.5, nothing=None)
    timeline.stop()
    (mark,) = timeline.events
    assert (mark.kind, mark.name, mark.time_s) == ("mark", "unfrozen", 1.5)
    assert mark.fields == {"layers": 3, "name": "head", "share": 0.5, "nothing": None}


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_mark_needs_a_name(name: object) -> None:
    rig = Rig()
    timeline = rig.start()
    with pytest.raises(ConfigError, match="needs a name"):
        timeline.mark(name)  # type: ignore[arg-type]  # what a newcomer may try
    with pytest.raises(ConfigError, match="must be text"):
        timeline.mark("ok", values=[1, 2])  # type: ignore[arg-type]  # the same
    timeline.stop()


@pytest.mark.parametrize("interval_ms", [0, 9, 60_001, -100])
def test_an_interval_out_of_range_is_refused(interval_ms: int) -> None:
    with pytest.raises(ConfigError, match="interval_ms"):
        Timeline(interval_ms)


def test_a_timeline_serves_one_run() -> None:
    rig = Rig()
    timeline = rig.start()
    with pytest.raises(FlodlError, match="new Timeline for each run"):
        timeline.start(["cpu"], [], start_s=0.0)
    timeline.stop()


# Live readers


def test_each_reader_gets_everything_from_its_subscription_on() -> None:
    rig = Rig()
    first = rig.timeline.subscribe()
    timeline = rig.start()
    second = timeline.subscribe()
    timeline.mark("a")
    rig.pulse.beat()
    timeline.stop()
    batches = list(first), list(second)
    assert [[len(batch.samples) for batch in read] for read in batches] == [[3], [2]]
    assert [[event.name for batch in read for event in batch.events] for read in batches] == [["a"], ["a"]]
    assert list(timeline.subscribe()) == []  # after the end there is nothing to wait for


def test_a_reader_that_does_not_come_loses_the_oldest_and_is_told() -> None:
    rig = Rig()
    timeline = rig.start()
    slow = timeline.subscribe(limit=3)
    for name in "abcde":
        timeline.mark(name)
    batch = slow.next(timeout_s=0.0)
    assert batch is not None
    assert ([event.name for event in batch.events], batch.num_dropped) == (["c", "d", "e"], 2)
    timeline.stop()


def test_a_reader_that_raises_is_forgotten_and_the_timeline_goes_on() -> None:
    rig = Rig()
    timeline = rig.start()
    with pytest.raises(ZeroDivisionError), timeline.subscribe() as live:
        raise ZeroDivisionError
    timeline.mark("after")
    assert live.next(timeout_s=0.0) is None
    assert timeline._subscriptions == []
    assert [event.name for event in timeline.events] == ["after"]
    timeline.stop()


def test_a_reader_is_woken_by_the_end() -> None:
    rig = Rig()
    timeline = rig.start()
    live = timeline.subscribe()
    read: list[int] = []
    reader = threading.Thread(target=lambda: read.extend(len(batch.samples) for batch in live))
    reader.start()
    timeline.stop()
    reader.join(LIMIT_S)
    assert sum(read) == 1


# Bounds


def test_a_long_run_is_held_in_bounded_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "MAX_SPANS", 400)
    rig = Rig()
    timeline = rig.start([f"cpu{rank}" for rank in range(4)])
    for number in range(12_000):
        timeline.on_event(average(0.01 * number, round_=number))
        timeline.on_event(window(number % 4, 0.01 * number, 0.01 * number + 0.009, busy_ms=9.0))
    for number in range(2_500):
        timeline.mark(f"m{number}")
    timeline.stop()
    record = timeline.record()
    assert all(len(lane.spans) <= module.MIN_SPANS for lane in record.lanes)
    syncs = [event for event in record.events if event.kind == "sync"]
    assert len(syncs) <= 10_000
    assert sum(event.num for event in syncs) == 12_000
    assert sum(event.duration_ms for event in syncs) == pytest.approx(24_000.0)
    assert record.num_averages_merged == 12_000 - len(syncs)
    assert dict(record.num_left_out) == {"mark": 500}
    timeline.save_json(tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["num_left_out"] == {"mark": 500}


def test_samples_are_merged_over_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SAMPLES", 16)
    rig = Rig()
    timeline = rig.start()
    for _ in range(60):
        rig.clock.now_s += 0.1
        rig.pulse.beat()
    timeline.stop()
    samples = timeline.samples
    assert len(samples) <= 16
    assert sum(sample.num_reads for sample in samples) == 62
    assert timeline.record().num_samples_merged == 62 - len(samples)
    assert samples[0].time_s < 1.0
    assert samples[-1].time_s == pytest.approx(6.0)
