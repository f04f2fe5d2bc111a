"""Databases for tests, each on SQLite and on PostgreSQL, and a clock that moves only when told."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import event

from flodl_store.database import Database, open_database
from tests.postgres import TEMPLATE, PostgresServer


class FakeClock:
    """A moment that stays until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables."""
    with ExitStack() as stack:
        yield _url(request, tmp_path, stack, template="template0")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database that has flodl's tables, or gets them when it is opened."""
    with ExitStack() as stack:
        yield _url(request, tmp_path, stack, template=TEMPLATE)


@pytest.fixture
def db(url: str, clock: FakeClock) -> Iterator[Database]:
    with open_database(url, clock=clock) as database:
        yield database


Away = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def away(db: Database, request: pytest.FixtureRequest) -> Away:
    """``with away():`` no write to ``db`` comes through, and it does not take long to say so."""
    if db.is_sqlite:
        return lambda: _locked(db)
    server: PostgresServer = request.getfixturevalue("postgres")
    return lambda: server.closed(str(db.url.database))


@contextmanager
def _locked(db: Database) -> Iterator[None]:
    def do_not_wait(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA busy_timeout=0")

    event.listen(db.engine, "connect", do_not_wait)
    db.close()  # so that the next connection is a new one
    with closing(sqlite3.connect(str(db.url.database))) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
    event.remove(db.engine, "connect", do_not_wait)
    db.close()


def _url(request: pytest.FixtureRequest, tmp_path: Path, stack: ExitStack, *, template: str) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'flodl.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(stack.enter_context(server.database(template=template)))
