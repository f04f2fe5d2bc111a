"""One run as its watchers see it: read by one poller, kept for a while, sent to each from where that one is.

Nobody has a queue. The newest messages lie in one ring; a client asks for the one that follows its cursor. Who is too
slow, or comes late, finds that the ring has moved on and is given rows out of the database, in messages that late
comers share. So a slow client costs no memory, and no client misses a row or gets one twice.

Guarantee: the rows messages that one call of ``follow(after)`` yields form a chain, each beginning where the one before
ended and the first at ``after``; together they hold every row above ``after``, once, in the order of ``seq``.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from dashboard.public import RunPublic
from dashboard.wire import RETRY, Rows, beat_message, rows_message, run_message
from flodl_store.database import Database
from flodl_store.errors import StoreError
from flodl_store.runs import get_run
from flodl_store.series import changes_after

log = logging.getLogger(__name__)

POLL_S = 0.15
BEAT_S = 10.0
RING = 64
PAGE_ROWS = 4000
KEPT_PAGES = 16


class RunFeed:
    """The feed of one run. Owner: the event loop; only reading the database happens in other threads."""

    def __init__(self, database: Database, run_id: str, *, poll_s: float = POLL_S, beat_s: float = BEAT_S) -> None:
        self._database = database
        self._run_id = run_id
        self._poll_s = poll_s
        self._beat_s = beat_s
        self._ring: deque[Rows] = deque(maxlen=RING)
        self._pages: OrderedDict[int, Rows] = OrderedDict()
        self._reading = asyncio.Lock()
        self._changed = asyncio.Event()
        self._closed = False
        self._seq: int | None = None
        self._run: Mapping[str, Any] = {}
        self._run_version = 0
        self._run_changes = b""

    async def poll(self) -> None:
        """Look at the run again and again, until cancelled or closed. One task for all who watch."""
        told = False
        while not self._closed:
            try:
                await self._look()
                told = False
            except StoreError as error:
                if not told:  # once for each time that the database goes away
                    log.warning("run %s cannot be read, trying on: %s", self._run_id, error)
                told = True
            await asyncio.sleep(self._poll_s)

    def close(self) -> None:
        """Let every stream end at its next message."""
        self._closed = True
        self._tell()

    async def follow(self, after: int) -> AsyncGenerator[bytes]:
        """The messages for one client that has every row up to ``after``."""
        cursor, version = after, 0
        yield RETRY
        while not self._closed:
            changed = self._changed
            if version != self._run_version:
                yield self._run_message(version)
                version = self._run_version
            rows = await self._rows_after(cursor)
            if rows is not None:
                yield rows.data
                cursor = rows.seq
                continue
            if version == self._run_version and not await self._wait(changed):
                yield beat_message(cursor)

    async def _look(self) -> None:
        run, rows = await asyncio.to_thread(self._read_news, self._seq)
        if rows is not None:
            self._ring.append(rows)
        news = {name: value for name, value in run.items() if self._run.get(name) != value}
        if news:
            self._run = run
            self._run_version += 1
            self._run_changes = run_message(self._database.clock(), news)
        if self._seq is None:
            self._seq = run["last_seq"]
        elif rows is not None:
            self._seq = rows.seq
        if news or rows is not None:
            self._tell()

    def _read_news(self, seq: int | None) -> tuple[dict[str, Any], Rows | None]:
        run = RunPublic.model_validate(get_run(self._database, self._run_id)).model_dump(mode="json")
        if seq is None or run["last_seq"] <= seq:
            return run, None
        return run, self._read_rows(seq)

    def _read_rows(self, after: int) -> Rows:
        return rows_message(after, changes_after(self._database, self._run_id, after, PAGE_ROWS))

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _run_message(self, version: int) -> bytes:
        if version == self._run_version - 1 and version > 0:
            return self._run_changes
        return run_message(self._database.clock(), self._run)

    async def _rows_after(self, cursor: int) -> Rows | None:
        if self._seq is None or cursor >= self._seq:
            return None
        for rows in reversed(self._ring):
            if rows.after == cursor:
                return rows
        return await self._page_after(cursor)

    async def _page_after(self, cursor: int) -> Rows | None:
        # One at a time: of many who come at once with the same cursor the first one reads, the others are given it.
        async with self._reading:
            page = self._pages.get(cursor)
            if page is not None:
                self._pages.move_to_end(cursor)
                return page
            try:
                page = await asyncio.to_thread(self._read_rows, cursor)
            except StoreError:
                return None  # the poller finds out too, and says so; the client waits
            if page.seq - page.after == PAGE_ROWS:  # what is recorded does not change: a full page stays what it is
                self._pages[cursor] = page
                if len(self._pages) > KEPT_PAGES:
                    self._pages.popitem(last=False)
        return page if page.seq > cursor else None

    async def _wait(self, changed: asyncio.Event) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._beat_s):
                await changed.wait()
        return changed.is_set()
