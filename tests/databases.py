"""Databases for tests, each on SQLite and on PostgreSQL, and a clock that moves only when told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flodl_store.database import Database, connect_database, open_database
from flodl_store.schema import upgrade
from tests.postgres import TEMPLATE, PostgresServer, programs, running_server


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


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server with a database ``TEMPLATE`` that has flodl's tables; skips where its programs are not installed."""
    folder = programs()
    if folder is None:
        pytest.skip("PostgreSQL's server programs (initdb, pg_ctl) are not installed")
    with running_server(folder) as server:
        server.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0")
        with connect_database(server.url(TEMPLATE)) as db:
            upgrade(db)
        yield server


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


def _url(request: pytest.FixtureRequest, tmp_path: Path, stack: ExitStack, *, template: str) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'flodl.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(stack.enter_context(server.database(template=template)))
