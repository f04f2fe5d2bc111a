"""The feeds of the runs that somebody watches: made with the first watcher, gone with the last."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from dashboard.run_feed import BEAT_S, POLL_S, RunFeed
from flodl_store.database import Database


class Feeds:
    """Hands out one feed for each run, however many watch it. Owner: the event loop."""

    def __init__(self, database: Database, *, poll_s: float = POLL_S, beat_s: float = BEAT_S) -> None:
        self._database = database
        self._poll_s = poll_s
        self._beat_s = beat_s
        self._feeds: dict[str, RunFeed] = {}
        self._watchers: dict[str, int] = {}
        self._pollers: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    @property
    def num_pollers(self) -> int:
        """Runs that are being read."""
        return len(self._pollers)

    @asynccontextmanager
    async def watch(self, run_id: str) -> AsyncIterator[RunFeed]:
        """The feed of a run that exists, as long as the block lasts."""
        feed = self._feeds.get(run_id) or self._start(run_id)
        self._watchers[run_id] += 1
        try:
            yield feed
        finally:
            self._watchers[run_id] -= 1
            if self._watchers[run_id] == 0:
                await self._stop(run_id)

    def close(self) -> None:
        """End every stream, and those that are asked for from now on at once. May be called twice."""
        self._closed = True
        for feed in self._feeds.values():
            feed.close()

    def _start(self, run_id: str) -> RunFeed:
        feed = RunFeed(self._database, run_id, poll_s=self._poll_s, beat_s=self._beat_s)
        if self._closed:
            feed.close()
        self._feeds[run_id] = feed
        self._watchers[run_id] = 0
        self._pollers[run_id] = asyncio.create_task(feed.poll(), name=f"feed-{run_id}")
        return feed

    async def _stop(self, run_id: str) -> None:
        # All of it before the first await: whoever comes in between starts anew.
        poller = self._pollers.pop(run_id)
        del self._feeds[run_id], self._watchers[run_id]
        poller.cancel()
        with suppress(asyncio.CancelledError):
            await poller
