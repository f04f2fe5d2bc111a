"""A queue from the coordinator to the run's owner that knows its end."""

import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Feed(Generic[T]):
    """First in, first out; each item is read once. All methods may be called from any thread.

    Args:
        limit: Most items kept for a reader that does not come; the oldest go first. None keeps all.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._items: deque[T] = deque(maxlen=limit)
        self._changed = threading.Condition()
        self._is_closed = False
        self.num_dropped = 0
        """Items that were dropped unread because the limit was reached."""

    def put(self, item: T) -> None:
        """Add an item; never blocks."""
        with self._changed:
            if self._items.maxlen is not None and len(self._items) == self._items.maxlen:
                self.num_dropped += 1
            self._items.append(item)
            self._changed.notify()

    def close(self) -> None:
        """Nothing more will come; what is there can still be read. May be called twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def next(self, timeout_s: float | None = None) -> T | None:
        """The next item, waiting for it; None at the end, or when ``timeout_s`` has passed."""
        with self._changed:
            limit_s = None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
            self._changed.wait_for(lambda: self._items or self._is_closed, limit_s)
            return self._items.popleft() if self._items else None

    def poll(self) -> list[T]:
        """All items that are there, without waiting."""
        with self._changed:
            items = list(self._items)
            self._items.clear()
            return items

    def __iter__(self) -> Iterator[T]:
        """Items until the end."""
        while (item := self.next()) is not None:
            yield item
