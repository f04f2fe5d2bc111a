"""Whoever watches a run misses nothing and gets nothing twice, however late, slow or often he comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard import run_feed
from dashboard.feeds import Feeds
from dashboard.run_feed import RunFeed
from flodl_store.database import Database, open_database
from flodl_store.runs import end_run
from flodl_store.writer import RunWriter
from tests.flodl_store.rows import epoch, event, running, step

LIMIT_S = 30
POLL_S = 0.001


def parse(message: bytes) -> tuple[str, Any, int | None]:
    fields = dict(line.split(": ", 1) for line in message.decode().strip().splitlines() if not line.startswith(":"))
    return (
        fields.get("event", ""),
        json.loads(fields.get("data", "null")),
        int(fields["id"]) if "id" in fields else None,
    )


async def next_of(stream: AsyncIterator[bytes], kind: str) -> Any:
    async for message in stream:
        name, data, _ = parse(message)
        if name == kind:
            return data
    raise AssertionError(f"the stream ended without {kind}")


async def rows_until(stream: AsyncIterator[bytes], seq: int, after: int) -> list[int]:
    """The seqs of all rows up to ``seq``; every message begins where the one before ended."""
    seqs: list[int] = []
    while after < seq:
        rows = await next_of(stream, "rows")
        assert rows["after"] == after
        seqs += sorted(
            [row[0] for row in rows["steps"]["rows"]] + [row["seq"] for row in rows["epochs"] + rows["events"]]
        )
        after = rows["seq"]
    return seqs


def watching(db: Database, body: Callable[[Feeds], Awaitable[None]], *, beat_s: float = LIMIT_S) -> None:
    async def run() -> None:
        feeds = Feeds(db, poll_s=POLL_S, beat_s=beat_s)
        async with asyncio.timeout(LIMIT_S):
            await body(feeds)

    asyncio.run(run())


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_feed, "PAGE_ROWS", 4)
    monkeypatch.setattr(run_feed, "RING", 2)


@pytest.mark.usefixtures("small_parts")
def test_a_late_comer_is_given_everything_once(db: Database) -> None:
    run_id = running(db)
    RunWriter(db, run_id).write([step(0), event(1), epoch(0), *map(step, range(3, 10))])

    async def body(feeds: Feeds) -> None:
        async with feeds.watch(run_id) as feed, aclosing(feed.follow(0)) as stream:
            assert await rows_until(stream, 10, after=0) == list(range(1, 11))

    watching(db, body)


def test_who_reconnects_goes_on_at_his_cursor(db: Database) -> None:
    run_id = running(db)
    RunWriter(db, run_id).write([step(number) for number in range(10)])

    async def body(feeds: Feeds) -> None:
        async with feeds.watch(run_id) as feed, aclosing(feed.follow(6)) as stream:
            assert await rows_until(stream, 10, after=6) == [7, 8, 9, 10]

    watching(db, body)


def test_rows_arrive_while_they_are_written_as_one_message_for_all(db: Database) -> None:
    run_id = running(db)
    writer = RunWriter(db, run_id)

    async def body(feeds: Feeds) -> None:
        async with feeds.watch(run_id) as feed, aclosing(feed.follow(0)) as one, aclosing(feed.follow(0)) as other:
            await next_of(one, "run")
            await next_of(other, "run")
            assert feeds.num_pollers == 1
            for number in range(5):
                writer.write([step(number)])
                messages = [await anext(_rows(stream)) for stream in (one, other)]
                assert messages[0] is messages[1]
                assert parse(messages[0])[2] == number + 1
        assert feeds.num_pollers == 0

    watching(db, body)


async def _rows(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for message in stream:
        if parse(message)[0] == "rows":
            yield message


@pytest.mark.usefixtures("small_parts")
def test_who_is_slow_falls_off_the_ring_and_still_misses_nothing(db: Database) -> None:
    run_id = running(db)
    writer = RunWriter(db, run_id)

    async def body(feeds: Feeds) -> None:
        async with feeds.watch(run_id) as feed, aclosing(feed.follow(0)) as slow, aclosing(feed.follow(0)) as quick:
            await next_of(slow, "run")
            await next_of(quick, "run")
            for number in range(12):  # many more messages than the ring holds
                writer.write([step(number)])
                assert await rows_until(quick, number + 1, after=number) == [number + 1]
            assert await rows_until(slow, 12, after=0) == list(range(1, 13))

    watching(db, body)


def test_a_run_is_told_whole_at_first_and_then_what_has_changed(db: Database) -> None:
    run_id = running(db, name="mine")

    async def body(feeds: Feeds) -> None:
        async with feeds.watch(run_id) as feed, aclosing(feed.follow(0)) as stream:
            first = await next_of(stream, "run")
            assert (first["run"]["name"], first["run"]["status"]) == ("mine", "running")
            end_run(db, run_id, "failed", "it broke")
            then = await next_of(stream, "run")
            assert (then["run"]["status"], then["run"]["error"]) == ("failed", "it broke")
            assert "name" not in then["run"]

    watching(db, body)


def test_a_quiet_stream_says_that_it_lives(db: Database) -> None:
    run_id = running(db)

    async def body(feeds: Feeds) -> None:
        async with feeds.watch(run_id) as feed, aclosing(feed.follow(0)) as stream:
            assert await next_of(stream, "beat") == 0

    watching(db, body, beat_s=0.001)


def test_closing_ends_every_stream_also_those_that_come_after(db: Database) -> None:
    run_id = running(db)

    async def body(feeds: Feeds) -> None:
        async with feeds.watch(run_id) as feed, aclosing(feed.follow(0)) as stream:
            await next_of(stream, "run")
            feeds.close()
            feeds.close()
            assert [message async for message in stream] == []
        async with feeds.watch(run_id) as feed:
            assert [parse(message)[0] async for message in feed.follow(0)] == [""]  # only how soon to come again

    watching(db, body)


def test_a_database_that_goes_away_and_comes_back_costs_no_row(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = running(db)
    writer = RunWriter(db, run_id)

    async def body(feeds: Feeds) -> None:
        async with feeds.watch(run_id) as feed, aclosing(feed.follow(0)) as stream:
            await next_of(stream, "run")
            await _fail_once(feed, db, monkeypatch)
            writer.write([step(0)])
            assert await rows_until(stream, 1, after=0) == [1]

    watching(db, body)
    assert [record.message for record in caplog.records if "cannot be read" in record.message] == [
        f"run {run_id} cannot be read, trying on: no database"
    ]


async def _fail_once(feed: RunFeed, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    from flodl_store.errors import DatabaseUnreachableError

    failed = asyncio.Event()
    loop = asyncio.get_running_loop()
    real = db.read

    def unreachable() -> Any:
        loop.call_soon_threadsafe(failed.set)
        raise DatabaseUnreachableError("no database")

    monkeypatch.setattr(db, "read", unreachable)
    await failed.wait()
    failed.clear()
    await failed.wait()  # a second time: told once all the same
    monkeypatch.setattr(db, "read", real)


@settings(max_examples=25)
@given(
    writes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    visits=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 40)), max_size=4),
    page_rows=st.integers(1, 12),
    ring=st.integers(1, 4),
)
def test_every_visit_is_a_chain_without_a_gap_or_a_repeat(
    writes: list[int], visits: list[tuple[int, int]], page_rows: int, ring: int
) -> None:
    """``visits``: before which write somebody comes, and up to which row he has everything already."""
    with TemporaryDirectory() as folder, open_database(f"sqlite:///{Path(folder) / 'flodl.db'}") as db:
        run_id = running(db)
        writer = RunWriter(db, run_id)

        async def body(feeds: Feeds) -> None:
            async with asyncio.TaskGroup() as tasks, feeds.watch(run_id) as feed:
                followed = [tasks.create_task(follow(feed, 0))]
                for number, size in enumerate(writes):
                    for when, cursor in visits:
                        if when == number and cursor <= writer.last_seq:
                            followed.append(tasks.create_task(follow(feed, cursor)))
                    await asyncio.to_thread(writer.write, [step(row) for row in range(size)])
                await asyncio.gather(*followed)

        async def follow(feed: RunFeed, cursor: int) -> None:
            async with aclosing(feed.follow(cursor)) as stream:
                assert await rows_until(stream, sum(writes), after=cursor) == list(range(cursor + 1, sum(writes) + 1))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_feed, "PAGE_ROWS", page_rows)
            patch.setattr(run_feed, "RING", ring)
            watching(db, body)
