"""What a run did and the database does not hold yet, in bounded memory.

Where the database is slow or away, rows pile up. At the limit, neighbours become one: two step windows of a rank within
an epoch, two averages. So only their density is lost, half of it at a time: sums, means and every other kind of event
are kept, whatever happens. How many rows went that way is counted.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from flodl_core import EpochMetrics, Event, StepWindow, SyncEvent

LIMIT = 100_000
"""Rows that are kept as they are: hours of a run with a few ranks, some 100 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedEpoch:
    """An epoch with the time of its end, on the engine's clock."""

    metrics: EpochMetrics
    time_s: float


Item = Event | EndedEpoch


class Backlog:
    """First in, first out. Owner: the recorder's thread.

    Args:
        limit: Number of items from which on neighbours are merged.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._items: deque[Item] = deque()
        self._limit = limit
        self._merge_at = limit
        self.num_merged = 0
        """Rows that went into a neighbour."""

    def __len__(self) -> int:
        return len(self._items)

    def extend(self, items: Iterable[Item]) -> None:
        """Add ``items`` at the end; merge where they are too many."""
        self._items.extend(items)
        if len(self._items) > self._merge_at:
            self._merge()

    def take(self, limit: int) -> list[Item]:
        """Remove at most ``limit`` items from the front."""
        taken = [self._items.popleft() for _ in range(min(limit, len(self._items)))]
        if len(self._items) <= self._limit:
            self._merge_at = self._limit
        return taken

    def _merge(self) -> None:
        before = len(self._items)
        self._items = deque(merge_neighbours(self._items))
        self.num_merged += before - len(self._items)
        # Where little could be merged, the next attempt waits: each one looks at all items.
        self._merge_at = max(self._limit, 2 * len(self._items) if len(self._items) > 0.9 * before else 0)


def merge_neighbours(items: Iterable[Item]) -> list[Item]:
    """``items`` with every second step window of a rank, and every second average, merged into the one after it.

    Each stands where the later of the two stood. An average that completed an epoch stays as it is.
    """
    places: list[Item | None] = []
    waiting: dict[tuple[int, ...], int] = {}  # what may be merged, to the place of one that has no partner yet
    for item in items:
        key = _merge_key(item)
        place = None if key is None else waiting.pop(key, None)
        if place is not None:
            item, places[place] = _merged(places[place], item), None
        elif key is not None:
            waiting[key] = len(places)
        places.append(item)
    return [item for item in places if item is not None]


def _merge_key(item: Item) -> tuple[int, ...] | None:
    """Items with the same key may be merged; those without one may not."""
    match item:
        case StepWindow():
            return item.rank, item.epoch
        case SyncEvent(epoch=None):
            return ()
    return None


def _merged(first: Item | None, second: Item) -> Item:
    match first, second:
        case StepWindow(), StepWindow():
            return merge_steps(first, second)
        case SyncEvent(), SyncEvent():
            return merge_syncs(first, second)
    raise AssertionError("items of one key are of one kind")


def merge_steps(first: StepWindow, second: StepWindow) -> StepWindow:
    """Two successive windows of a rank within an epoch as one: the loss is the mean over the samples of both."""
    num_samples = first.num_samples + second.num_samples
    busy_ms = first.busy_ms + second.busy_ms
    return replace(
        second,
        loss=(first.loss * first.num_samples + second.loss * second.num_samples) / num_samples,
        samples_per_s=1e3 * num_samples / busy_ms if busy_ms > 0 else 0.0,
        num_batches=first.num_batches + second.num_batches,
        num_samples=num_samples,
        busy_ms=busy_ms,
        start_s=first.start_s,
        idle=first.idle + second.idle,
    )


def merge_syncs(first: SyncEvent, second: SyncEvent) -> SyncEvent:
    """Two averages as one event: what they cost is added up, the worse drift stays."""
    ranks = sorted({*first.wait_ms, *second.wait_ms})
    weighted = sorted({*first.weights, *second.weights})
    return replace(
        second,
        num_syncs=first.num_syncs + second.num_syncs,
        duration_ms=first.duration_ms + second.duration_ms,
        wait_ms={rank: first.wait_ms.get(rank, 0.0) + second.wait_ms.get(rank, 0.0) for rank in ranks},
        weights={rank: first.weights.get(rank, 0) + second.weights.get(rank, 0) for rank in weighted},
        divergence=_merge_by_rank(first.divergence, second.divergence, max),
        cosine=_merge_by_rank(first.cosine, second.cosine, min),
        magnitude=_merge_by_rank(first.magnitude, second.magnitude, lambda a, b: max(a, b, key=abs)),
        excluded=tuple(sorted({*first.excluded, *second.excluded})),
    )


def _merge_by_rank(
    first: Mapping[int, float], second: Mapping[int, float], pick: Callable[[float, float], float]
) -> dict[int, float]:
    merged = {**first, **second}
    for rank in first.keys() & second.keys():
        values = (first[rank], second[rank])
        merged[rank] = math.nan if any(map(math.isnan, values)) else pick(*values)  # NaN is not hidden
    return dict(sorted(merged.items()))
