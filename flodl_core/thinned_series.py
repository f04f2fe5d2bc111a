"""A series that never holds more than so many items: where it would, neighbours become one."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ThinnedSeries(Generic[T]):
    """Items in order of time, as they came up to ``limit`` of them, then evenly coarser over the whole series.

    Above the limit time is divided into equal slots, twice as long each time that it is reached again, and the items
    of a slot are merged. Adding costs O(1), averaged over many items. The owner sees to locking.

    Args:
        limit: Most items held, at least 4.
        time_s: When an item was; may not go back from one to the next.
        merge: Makes one item of two successive ones.
    """

    def __init__(self, limit: int, *, time_s: Callable[[T], float], merge: Callable[[T, T], T]) -> None:
        if limit < 4:
            raise ValueError(f"limit must be at least 4, not {limit}")
        self._limit = limit
        self._time_s = time_s
        self._merge = merge
        self._items: list[T] = []
        self.slot_s = 0.0
        """Length of a slot; 0 while nothing has been merged."""
        self.num_added = 0
        """Items added, merged ones too."""

    def add(self, item: T) -> None:
        """Append an item."""
        self.num_added += 1
        self._place(self._items, item)
        if len(self._items) > self._limit:
            self._thin()

    def _place(self, items: list[T], item: T) -> None:
        if items and self.slot_s > 0 and self._slot(items[-1]) == self._slot(item):
            items[-1] = self._merge(items[-1], item)
        else:
            items.append(item)

    def _slot(self, item: T) -> int:
        return int(self._time_s(item) // self.slot_s)

    def _thin(self) -> None:
        length_s = self._time_s(self._items[-1]) - self._time_s(self._items[0])
        self.slot_s = max(2 * length_s / (self._limit - 2), 2 * self.slot_s, 1e-9)
        thinned: list[T] = []
        for item in self._items:
            self._place(thinned, item)
        self._items = thinned

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
