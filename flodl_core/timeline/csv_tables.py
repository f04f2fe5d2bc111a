"""A timeline as three tables: samples, events and idle gaps."""

from collections.abc import Iterator
from dataclasses import astuple, fields
from pathlib import Path

from flodl_core.text_file import csv_text, json_text, write_text
from flodl_core.timeline.json_file import MIN_GAP_MS
from flodl_core.timeline.record import TimelineRecord
from flodl_core.timeline.samples import DeviceSample, TimelineSample

_HOST = tuple(field.name for field in fields(TimelineSample) if field.name != "devices")
_DEVICE = tuple(field.name for field in fields(DeviceSample) if field.name != "device")
_EVENT = ("kind", "time_s", "start_s", "duration_ms", "rank", "name", "num", "fields")
_GAP = ("rank", "start_s", "end_s", "cause", "idle_ms")


def write_csv(record: TimelineRecord, path: Path) -> tuple[Path, Path, Path]:
    """Write samples to ``path``, events and idle gaps to ``-events`` and ``-idle`` beside it.

    Returns:
        The three files.

    Raises:
        OSError: One of them cannot be written.
    """
    events = path.with_name(f"{path.stem}-events{path.suffix}")
    idle = path.with_name(f"{path.stem}-idle{path.suffix}")
    write_text(path, _samples(record))
    write_text(events, csv_text(_EVENT, _events(record)))
    write_text(idle, csv_text(_GAP, (astuple(gap) for gap in record.gaps(MIN_GAP_MS))))
    return path, events, idle


def _samples(record: TimelineRecord) -> str:
    names = [device.device for device in record.samples[0].devices] if record.samples else []
    columns = [*_HOST, *(f"{name} {field}" for name in names for field in _DEVICE)]
    return csv_text(columns, (_sample(sample) for sample in record.samples))


def _sample(sample: TimelineSample) -> list[object]:
    devices = [getattr(device, name) for device in sample.devices for name in _DEVICE]
    return [*(getattr(sample, name) for name in _HOST), *devices]


def _events(record: TimelineRecord) -> Iterator[list[object]]:
    for event in record.events:
        yield [*(getattr(event, name) for name in _EVENT[:-1]), json_text(event.fields).strip()]
