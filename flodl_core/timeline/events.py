"""What happened in a run, as marks on its timeline."""

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeGuard

from flodl_core.errors import ConfigError
from flodl_core.events import AnchorChanged, EpochEnded, Event, StepWindow, SyncEvent, Throttled
from flodl_core.thinned_series import ThinnedSeries

FieldValue = str | int | float | bool | None
MAX_PER_KIND = 2_000
"""Marks kept of each kind; the oldest go first, and are counted."""
MAX_AVERAGES = 10_000
"""Averages kept one by one; above that, neighbours are added up."""

_KINDS: Mapping[type, str] = {EpochEnded: "epoch end", Throttled: "throttle", AnchorChanged: "anchor changed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """Something that happened.

    Attributes:
        kind: ``epoch start``, ``epoch end``, ``sync`` (replicas were averaged), ``average`` (an average was computed
            beside the training, CPU backend), ``eval``, ``checkpoint``, ``anchor changed``, ``throttle``,
            ``snapshot late``, ``worker joined``, ``worker lost``, ``run started``, ``run ended``, ``mark`` (the
            user's), or another event's name.
        time_s: When it was over, in seconds since the run started.
        duration_ms: How long it took; 0 for what has no length.
        rank: Whom it concerns, or None for all.
        name: Of a mark, as the user gave it.
        num: Events of this kind that it stands for: several averages may be told as one, their durations added up.
        fields: More about it: of several averages, the last one's.
    """

    kind: str
    time_s: float
    duration_ms: float = 0.0
    rank: int | None = None
    name: str = ""
    num: int = 1
    fields: Mapping[str, FieldValue]

    @property
    def start_s(self) -> float:
        """When it began; of several averages, as if they had followed on each other."""
        return self.time_s - self.duration_ms / 1e3


class EventBook:
    """A run's marks, a bounded number of them. The owner sees to locking."""

    def __init__(self) -> None:
        self._marks: dict[str, deque[TimelineEvent]] = {}
        self._averages = {kind: _averages() for kind in ("sync", "average")}
        self.num_left_out: dict[str, int] = {}
        """Marks that are no longer kept, by kind."""

    def add(self, event: TimelineEvent) -> None:
        """Enter an event."""
        if event.kind in self._averages:
            self._averages[event.kind].add(event)
            return
        marks = self._marks.setdefault(event.kind, deque(maxlen=MAX_PER_KIND))
        if len(marks) == MAX_PER_KIND:
            self.num_left_out[event.kind] = self.num_left_out.get(event.kind, 0) + 1
        marks.append(event)

    def all(self) -> list[TimelineEvent]:
        """Everything kept, by time."""
        kept: list[Iterable[TimelineEvent]] = [*self._marks.values(), *self._averages.values()]
        return sorted((event for events in kept for event in events), key=lambda event: event.time_s)

    @property
    def num_merged(self) -> int:
        """Averages that were added to a neighbour."""
        return sum(series.num_added - len(series) for series in self._averages.values())


def _averages() -> ThinnedSeries[TimelineEvent]:
    return ThinnedSeries(MAX_AVERAGES, time_s=lambda event: event.time_s, merge=merge_averages)


def merge_averages(first: TimelineEvent, second: TimelineEvent) -> TimelineEvent:
    """Two averages as one event."""
    return replace(second, duration_ms=first.duration_ms + second.duration_ms, num=first.num + second.num)


class EventTranslator:
    """Makes timeline events of the engine's, and of first batches the starts that have no event of their own."""

    def __init__(self) -> None:
        self._ranks: set[int] = set()
        self._epoch = -1

    def translate(self, event: Event) -> list[TimelineEvent]:
        """What ``event`` says, in order; a step window mostly says nothing new."""
        match event:
            case StepWindow():
                return self._starts(event)
            case SyncEvent():
                return [_sync(event)]
        return [_plain(event)]

    def _starts(self, window: StepWindow) -> list[TimelineEvent]:
        starts = []
        if window.rank not in self._ranks:
            self._ranks.add(window.rank)
            starts.append(TimelineEvent(kind="worker joined", time_s=window.start_s, rank=window.rank, fields={}))
        if window.epoch > self._epoch:  # the first to report on an epoch need not be the first in it, but nearly so
            self._epoch = window.epoch
            starts.append(TimelineEvent(kind="epoch start", time_s=window.start_s, fields={"epoch": window.epoch}))
        return starts


def _sync(event: SyncEvent) -> TimelineEvent:
    return TimelineEvent(
        kind="sync",
        time_s=event.time_s,
        duration_ms=event.duration_ms,
        num=event.num_syncs,
        fields={
            "round": event.round,
            "epoch": event.epoch,
            "anchor": event.anchor,
            "longest_wait_ms": max(event.wait_ms.values(), default=None),
            "largest_divergence": max(event.divergence.values(), default=None),
            "num_excluded": len(event.excluded),
        },
    )


def _plain(event: Event) -> TimelineEvent:
    """An event that is told as it is. Its kind is that of the table or, like ``worker lost``, its class's name."""
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", type(event).__name__).lower()
    kind = _KINDS.get(type(event), words)
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    rank = values.pop("rank", None)
    time_s = values.pop("time_s")
    kept = {name: value if _is_plain(value) else _text(value) for name, value in values.items()}
    return TimelineEvent(kind=kind, time_s=time_s, rank=rank, fields=kept)


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def user_mark(name: object, time_s: float, values: Mapping[str, object]) -> TimelineEvent:
    """A mark of the user's.

    Raises:
        ConfigError: The name is not text, or a value is neither text nor a number.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a mark needs a name, not {name!r}")
    kept: dict[str, FieldValue] = {}
    for key, value in values.items():
        if not _is_plain(value):
            raise ConfigError(f"{key} of a mark must be text, a number, a boolean or None, not {type(value).__name__}")
        kept[key] = value
    return TimelineEvent(kind="mark", time_s=time_s, name=name, fields=kept)


def _is_plain(value: object) -> TypeGuard[FieldValue]:
    return value is None or isinstance(value, str | int | float | bool)
