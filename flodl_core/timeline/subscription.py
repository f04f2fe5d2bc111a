"""A timeline's live readers."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from flodl_core.feed import Feed
from flodl_core.timeline.events import TimelineEvent
from flodl_core.timeline.samples import TimelineSample


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineBatch:
    """What was new at one reading.

    Attributes:
        samples: In order.
        events: In order. What the engine tells late (an epoch's start, with its first step window) comes late.
        num_dropped: Samples and events that this reader has lost so far, the oldest first, for not reading in time.
    """

    samples: tuple[TimelineSample, ...]
    events: tuple[TimelineEvent, ...]
    num_dropped: int


class TimelineSubscription:
    """Reads a timeline while it grows; iterating ends with the run. For one reader, in any thread.

    Training never waits for it: who reads too slowly loses the oldest, who reads no more calls ``close``, or has used
    it as a context manager.

    Args:
        limit: Most samples and events kept for a reader that does not come.
    """

    def __init__(self, limit: int) -> None:
        self._feed: Feed[TimelineSample | TimelineEvent] = Feed(limit)
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing more will come."""
        return self._is_closed

    def put(self, item: TimelineSample | TimelineEvent) -> None:
        """Give the reader an item; never blocks. Called by the timeline."""
        self._feed.put(item)

    def close(self) -> None:
        """Nothing more will come; what is there can still be read. May be called twice."""
        self._is_closed = True
        self._feed.close()

    def next(self, timeout_s: float | None = None) -> TimelineBatch | None:
        """Wait for something new and take all of it.

        Args:
            timeout_s: Longest wait in seconds; None waits as long as it takes.

        Returns:
            What is new, or None at the end or when the time has passed.
        """
        first = self._feed.next(timeout_s)
        if first is None:
            return None
        items = [first, *self._feed.poll()]
        return TimelineBatch(
            samples=tuple(item for item in items if isinstance(item, TimelineSample)),
            events=tuple(item for item in items if isinstance(item, TimelineEvent)),
            num_dropped=self._feed.num_dropped,
        )

    def __iter__(self) -> Iterator[TimelineBatch]:
        """What is new, until the end."""
        while (batch := self.next()) is not None:
            yield batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
