"""What the tests of the dashboard share: a home of their own, its database, and somebody who asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from dashboard.app import create_app
from dashboard.settings import DashboardSettings
from flodl_store.database import Database, open_database


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
