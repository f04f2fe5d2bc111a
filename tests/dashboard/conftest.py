"""What the tests of the dashboard share: a home of their own, its database, and somebody who asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from dashboard.app import create_app
from dashboard.settings import DashboardSettings
from flodl_store.database import Database, open_database
from tests.dashboard.browser import Visitor, visitor
from tests.dashboard.server_process import ServerProcess


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("FLODL_HOME", str(folder))
    for name in ("FLODL_DATABASE_URL", "FLODL_DASHBOARD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def db() -> Iterator[Database]:
    with open_database() as database:
        yield database


@pytest.fixture
def client(db: Database) -> Iterator[TestClient]:
    app = create_app(DashboardSettings())
    with TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False) as client:
        yield client


@pytest.fixture
def server(home: Path) -> Iterator[ServerProcess]:
    """The real dashboard over ``db``."""
    process = ServerProcess(home)
    process.start()
    yield process
    process.close()


@pytest.fixture
def visit(server: ServerProcess) -> Iterator[Visitor]:
    with visitor(server.url) as visiting:
        yield visiting


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all tests of a file, with a home of its own: starting it takes longer than most of them."""
    process = ServerProcess(tmp_path_factory.mktemp("shared") / "home")
    process.start()
    yield process
    process.close()
