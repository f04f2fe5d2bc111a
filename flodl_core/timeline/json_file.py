"""A timeline as one JSON object."""

from dataclasses import asdict
from pathlib import Path

from flodl_core.text_file import json_text, write_text
from flodl_core.timeline.events import TimelineEvent
from flodl_core.timeline.record import RankLane, TimelineRecord

FORMAT = 1
"""Raised when a reader of the file would have to change."""
MIN_GAP_MS = 1.0


def write_json(record: TimelineRecord, path: Path) -> None:
    """Write the file.

    Raises:
        OSError: It cannot be written.
    """
    write_text(path, json_text(as_plain(record)))


def as_plain(record: TimelineRecord) -> dict[str, object]:
    """The record as dicts, lists, numbers and text."""
    return {
        "format": FORMAT,
        "interval_ms": record.interval_ms,
        "end_s": record.end_s,
        "ranks": [_rank(lane) for lane in record.lanes],
        "samples": [asdict(sample) for sample in record.samples],
        "events": [_event(event) for event in record.events],
        "idle_gaps": [asdict(gap) for gap in record.gaps(MIN_GAP_MS)],
        "num_samples_merged": record.num_samples_merged,
        "num_averages_merged": record.num_averages_merged,
        "num_left_out": dict(record.num_left_out),
    }


def _rank(lane: RankLane) -> dict[str, object]:
    idle_ms = {str(cause): ms for cause, ms in lane.idle_ms.items()}
    return {"rank": lane.rank, "device": lane.label, "train_ms": lane.train_ms, "idle_ms": idle_ms}


def _event(event: TimelineEvent) -> dict[str, object]:
    return {
        "kind": event.kind,
        "time_s": event.time_s,
        "start_s": event.start_s,
        "duration_ms": event.duration_ms,
        "rank": event.rank,
        "name": event.name,
        "num": event.num,
        "fields": dict(event.fields),
    }
