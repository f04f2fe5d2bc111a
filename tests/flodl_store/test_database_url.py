"""Which database is meant, and what is said of a URL that names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from flodl_store.database_url import database_url, shown
from flodl_store.errors import DatabaseUrlError


def test_the_default_is_a_file_in_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FLODL_DATABASE_URL", raising=False)
    monkeypatch.setenv("FLODL_HOME", str(tmp_path))
    assert shown(database_url()) == f"sqlite:///{tmp_path}/flodl.db"


def test_the_environment_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_DATABASE_URL", "sqlite:////there/x.db")
    assert database_url().database == "/there/x.db"


def test_what_is_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_DATABASE_URL", "sqlite:////there/x.db")
    assert database_url("sqlite:////here/y.db").database == "/here/y.db"


@pytest.mark.parametrize("name", ["postgresql", "postgres", "postgresql+psycopg"])
def test_every_common_name_of_postgresql_is_taken(name: str) -> None:
    url = database_url(f"{name}://me:secret@host:5433/flodl")
    assert url.drivername == "postgresql+psycopg"
    assert shown(url) == "postgresql://me:***@host:5433/flodl"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "is no URL"),
        ("postgresql://me:secret@host:port/x", "is no URL"),
        ("mysql://me:secret@host/x", "is for mysql"),
        ("postgresql+asyncpg://me:secret@host/x", r"is for postgresql\+asyncpg"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///file:x?mode=memory&uri=true", "names no file"),
        ("postgresql://me:secret@host", "names no database"),
    ],
)
def test_other_urls_are_refused_with_what_they_look_like(url: str, says: str) -> None:
    with pytest.raises(DatabaseUrlError, match=rf"^FLODL_DATABASE_URL {says}.*sqlite:////.*postgresql://") as caught:
        database_url(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
