"""A timeline as a page: each rank's time by cause, what happened, the machine's curves, the longest waits."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

from flodl_core.display_text import duration_text, number_text, percent_text
from flodl_core.html_page import keys, note, page, row, section, table
from flodl_core.svg_plot import Scale, axis, box, filled, hint, plot, round_steps, ticks
from flodl_core.text_file import write_text
from flodl_core.thinned_series import ThinnedSeries
from flodl_core.timeline.curves import draw_curves
from flodl_core.timeline.events import TimelineEvent
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
NUM_GAPS = 20
NUM_EVENTS = 200


def write_page(record: TimelineRecord, path: Path) -> None:
    """Write the page.

    Raises:
        OSError: It cannot be written.
    """
    write_text(path, render(record))


def render(record: TimelineRecord) -> str:
    """The page as text."""
    scale = Scale(left=0.0, right=record.end_s)
    num_ranks = len(record.lanes)
    subtitle = (
        f"{num_ranks} rank{'s' if num_ranks != 1 else ''}, {duration_text(record.end_s)}, "
        f"sampled every {record.interval_ms} ms"
    )
    return page(
        "Timeline",
        subtitle,
        [
            section("Ranks", _legend(), *(_lane(lane, num_ranks, scale) for lane in record.lanes), _axis_row(scale)),
            section("Events", *_event_rows(record, scale), _axis_row(scale)) if record.events else "",
            section("Machine", *draw_curves(record.samples, scale), _axis_row(scale)) if record.samples else "",
            section("Time by rank", _shares(record)),
            section("Longest idle gaps", _gaps(record)),
            section("What happened", _event_table(record), *_left_out(record)),
        ],
    )


def _axis_row(scale: Scale) -> str:
    values = round_steps(scale.left, scale.right, 6)
    return row("", "", axis(scale, [(value, f"{number_text(value)} s") for value in values]))


def _legend() -> str:
    return keys([("train", TRAIN_COLOR), *((str(cause), CAUSE_COLORS[cause]) for cause in CAUSES)])


# Lanes


def _lane(lane: RankLane, num_ranks: int, scale: Scale) -> str:
    limit = max(20, min(MAX_DRAWN_PER_RANK, MAX_DRAWN_SPANS // num_ranks))
    drawn: ThinnedSeries[LaneSpan] = ThinnedSeries(limit, time_s=lambda span: span.end_s, merge=merge_spans)
    for span in lane.spans:
        drawn.add(span)
    lane_scale = Scale(left=scale.left, right=scale.right, height=34)
    return row(f"rank {lane.rank}", lane.label, plot(lane_scale, _stacked(list(drawn), lane_scale)))


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


def _shares(record: TimelineRecord) -> str:
    columns = ["rank", "device", "time", "train", *map(str, CAUSES)]
    return table(columns, [_share_row(lane) for lane in record.lanes])


def _share_row(lane: RankLane) -> list[object]:
    length_ms = lane.length_ms or 1.0
    idle_ms = lane.idle_ms
    shares = [percent_text(ms / length_ms) for ms in (lane.train_ms, *(idle_ms[cause] for cause in CAUSES))]
    return [lane.rank, lane.label, duration_text(lane.length_ms / 1e3), *shares]


def _gaps(record: TimelineRecord) -> str:
    longest = sorted(record.gaps(1.0), key=lambda gap: -gap.idle_ms)[:NUM_GAPS]
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
    known = [f"{name} {value}" for name, value in event.fields.items() if value is not None]
    return ", ".join([event.name, *known] if event.name else known)


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
