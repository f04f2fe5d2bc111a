"""A timeline as a page: each rank's time by cause, what happened, the machine's curves, the longest waits."""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from flodl_core.display_text import duration_text, number_text, percent_text
from flodl_core.html_page import keys, note, page, row, section, table, warning
from flodl_core.svg_plot import Scale, axis, box, filled, hint, plot, round_steps, ticks
from flodl_core.text_file import write_text
from flodl_core.thinned_series import ThinnedSeries
from flodl_core.timeline.curves import draw_curves
from flodl_core.timeline.events import FieldValue, TimelineEvent
from flodl_core.timeline.lanes import CAUSES, IdleCause, LaneSpan, merge_spans
from flodl_core.timeline.record import RankLane, TimelineRecord

TRAIN_COLOR = "var(--c0)"
CAUSE_COLORS = {
    IdleCause.SYNC: "var(--c1)",
    IdleCause.WAIT: "var(--c4)",
    IdleCause.LOAD: "var(--c7)",
    IdleCause.NO_DATA: "var(--c3)",
    IdleCause.START: "var(--soft)",
    IdleCause.END: "var(--firm)",
    IdleCause.UNKNOWN: "var(--c6)",
}
EVENT_COLORS = {"worker lost": "var(--bad)", "sync": "var(--c1)", "average": "var(--c1)"}
MAX_DRAWN_SPANS = 4_000
"""Spans drawn of all ranks together."""
MAX_DRAWN_PER_RANK = 300
NUM_GAPS = 12
NUM_EVENTS = 200


def write_page(record: TimelineRecord, path: Path) -> None:
    """Write the page.

    Raises:
        OSError: It cannot be written.
    """
    write_text(path, render(record))


def render(record: TimelineRecord) -> str:
    """The page as text."""
    if not record.lanes:
        return page("Timeline", "No run has begun yet.", [])
    scale = Scale(left=0.0, right=record.end_s)
    lost = {event.rank: event for event in record.events if event.kind == "worker lost"}
    causes = [cause for cause in CAUSES if any(lane.idle_ms[cause] > 0 for lane in record.lanes)]
    lanes = [_lane(lane, len(record.lanes), scale, lost.get(lane.rank)) for lane in record.lanes]
    warnings = [warning(f"Lost at {event.time_s:.3f} s: {_about(event)}") for event in lost.values()]
    return page(
        "Timeline",
        _subtitle(record),
        [
            section("Ranks", *warnings, _legend(causes), *lanes, _axis_row(scale)),
            section("Events", *_event_rows(record, scale), _axis_row(scale)) if record.events else "",
            section("Machine", *draw_curves(record.samples, scale), _axis_row(scale)) if record.samples else "",
            section("Time by rank", _shares(record, causes)),
            section("Longest waits between the first and the last batch", _gaps(record)),
            section("What happened", _event_table(record), *_left_out(record)),
        ],
    )


def _subtitle(record: TimelineRecord) -> str:
    num_ranks = len(record.lanes)
    ended = [str(event.fields["status"]) for event in record.events if event.kind == "run ended"]
    lengths_ms = sum(lane.length_ms for lane in record.lanes)
    share = f", {percent_text(sum(lane.train_ms for lane in record.lanes) / lengths_ms)} training" if lengths_ms else ""
    return (
        f"{num_ranks} rank{'s' if num_ranks != 1 else ''}, {ended[-1] if ended else 'still running'}, "
        f"{duration_text(record.end_s)}{share}; sampled every {record.interval_ms} ms"
    )


def _axis_row(scale: Scale) -> str:
    values = round_steps(scale.left, scale.right, 6)
    return row("", "", axis(scale, [(value, f"{number_text(value)} s") for value in values]))


def _legend(causes: Sequence[IdleCause]) -> str:
    return keys([("train", TRAIN_COLOR), *((str(cause), CAUSE_COLORS[cause]) for cause in causes)])


# Lanes


def _lane(lane: RankLane, num_ranks: int, scale: Scale, lost: TimelineEvent | None) -> str:
    limit = max(20, min(MAX_DRAWN_PER_RANK, MAX_DRAWN_SPANS // num_ranks))
    drawn: ThinnedSeries[LaneSpan] = ThinnedSeries(limit, time_s=lambda span: span.end_s, merge=merge_spans)
    for span in lane.spans:
        drawn.add(span)
    lane_scale = Scale(left=scale.left, right=scale.right, height=34)
    shapes = _stacked(list(drawn), lane_scale)
    detail = f"{lane.label}, {percent_text(lane.train_ms / (lane.length_ms or 1.0))} training"
    if lost is not None:
        shapes.append(ticks(lane_scale, [lost.time_s], EVENT_COLORS["worker lost"]))
        detail = f"{lane.label}, lost at {lost.time_s:.2f} s"
    return row(f"rank {lane.rank}", detail, plot(lane_scale, shapes), is_bad=lost is not None)


def _stacked(spans: list[LaneSpan], scale: Scale) -> list[str]:
    """Each span as a column divided by cause, training at the bottom: how much of it, not when within it."""
    paths = dict.fromkeys((TRAIN_COLOR, *CAUSE_COLORS.values()), "")
    for span in spans:
        left = scale.x(span.start_s)
        width = scale.x(span.end_s) - left
        length_ms = 1e3 * (span.end_s - span.start_s)
        floor = float(scale.height)
        parts = [(TRAIN_COLOR, span.train_ms), *((CAUSE_COLORS[cause], span.idle(cause)) for cause in CAUSES)]
        for color, ms in parts:
            height = scale.height * ms / length_ms
            floor -= height
            if height >= 0.02:
                paths[color] += box(left, floor, width, height)
    return [*(filled(path, color) for color, path in paths.items()), *(_hint(span, scale) for span in spans)]


def _hint(span: LaneSpan, scale: Scale) -> str:
    length_ms = 1e3 * (span.end_s - span.start_s)
    parts = [("train", span.train_ms), *((str(cause), span.idle(cause)) for cause in CAUSES)]
    told = ", ".join(f"{name} {percent_text(ms / length_ms)}" for name, ms in parts if ms >= 0.0005 * length_ms)
    left = scale.x(span.start_s)
    area = box(left, 0, scale.x(span.end_s) - left, scale.height)
    return hint(area, f"{span.start_s:.2f} to {span.end_s:.2f} s: {told}")


def _shares(record: TimelineRecord, causes: Sequence[IdleCause]) -> str:
    columns = ["rank", "device", "time", "train", *map(str, causes)]
    return table(columns, [_share_row(lane, causes) for lane in record.lanes])


def _share_row(lane: RankLane, causes: Sequence[IdleCause]) -> list[object]:
    length_ms = lane.length_ms or 1.0
    idle_ms = lane.idle_ms
    shares = [percent_text(ms / length_ms) for ms in (lane.train_ms, *(idle_ms[cause] for cause in causes))]
    return [lane.rank, lane.label, duration_text(lane.length_ms / 1e3), *shares]


def _gaps(record: TimelineRecord) -> str:
    within = (gap for gap in record.gaps(1.0) if gap.cause not in (IdleCause.START, IdleCause.END))
    longest = sorted(within, key=lambda gap: -gap.idle_ms)[:NUM_GAPS]
    if not longest:
        return note("None of a millisecond or more.")
    rows = [
        [gap.rank, str(gap.cause), f"{number_text(gap.idle_ms)} ms", f"{gap.start_s:.3f} s", f"{gap.end_s:.3f} s"]
        for gap in longest
    ]
    return table(["rank", "cause", "idle", "between", "and"], rows)


# Events


def _event_rows(record: TimelineRecord, scale: Scale) -> list[str]:
    by_kind: dict[str, list[TimelineEvent]] = {}
    for event in record.events:
        by_kind.setdefault(event.kind, []).append(event)
    strip = Scale(left=scale.left, right=scale.right, height=14)
    return [
        row(f"{kind}: {sum(event.num for event in events):,}", "", plot(strip, [_ticks(strip, kind, events)]))
        for kind, events in by_kind.items()
    ]


def _ticks(scale: Scale, kind: str, events: list[TimelineEvent]) -> str:
    return ticks(scale, (event.time_s for event in events), EVENT_COLORS.get(kind, TRAIN_COLOR))


def _event_table(record: TimelineRecord) -> str:
    rare = (event for event in reversed(record.events) if event.kind not in ("sync", "average"))
    latest = list(islice(rare, NUM_EVENTS))
    rows = [
        [f"{event.time_s:.3f} s", event.kind, "" if event.rank is None else event.rank, _about(event)]
        for event in reversed(latest)
    ]
    return table(["time", "event", "rank", "about"], rows, wide="about") if rows else note("Nothing.")


def _about(event: TimelineEvent) -> str:
    parts = [event.name] if event.name else []
    parts += [_field(event, name, value) for name, value in event.fields.items() if value is not None]
    parts += [f"took {number_text(event.duration_ms)} ms"] if event.duration_ms >= 0.1 else []
    return ", ".join(parts)


def _field(event: TimelineEvent, name: str, value: FieldValue) -> str:
    """A field as a person reads it: epochs count from 1, as on a monitor; what a user has noted stays as it is."""
    if event.kind == "mark":
        return f"{name} {value}"
    if name == "error":
        return str(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        told = number_text(value + 1 if name == "epoch" else value)
        return f"{told} {name.removeprefix('num_')}" if name.startswith("num_") else f"{name.replace('_', ' ')} {told}"
    return f"{name.replace('_', ' ')} {value}"


def _left_out(record: TimelineRecord) -> list[str]:
    remarks: list[tuple[int, Callable[[int], str]]] = [
        (record.num_samples_merged, lambda num: f"{num:,} samples were merged into a neighbour."),
        (record.num_averages_merged, lambda num: f"{num:,} averages were merged into a neighbour."),
        *(
            (num, lambda num, kind=kind: f"{num:,} earlier events of the kind {kind} are not kept.")
            for kind, num in record.num_left_out.items()
        ),
    ]
    return [note(tell(num)) for num, tell in remarks if num]
