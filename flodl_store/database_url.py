"""Which database is meant: a file in flodl's home, or what ``FLODL_DATABASE_URL`` names."""

import os

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from flodl_store.errors import DatabaseUrlError
from flodl_store.home import flodl_home

VARIABLE = "FLODL_DATABASE_URL"
LOOKS_LIKE = "it looks like sqlite:////folder/flodl.db or postgresql://user:password@host:5432/name"
POSTGRES_NAMES = ("postgresql", "postgres", "postgresql+psycopg")


def database_url(url: str | None = None) -> URL:
    """``url``, else ``$FLODL_DATABASE_URL``, else the SQLite file ``flodl.db`` in flodl's home.

    Raises:
        DatabaseUrlError: It names no file of SQLite and no database of PostgreSQL.
        HomeError: There is no home folder to put the file into.
    """
    asked = url or os.environ.get(VARIABLE)
    if not asked:
        return URL.create("sqlite", database=str(flodl_home() / "flodl.db"))
    try:
        parsed = make_url(asked)
    except (ArgumentError, ValueError):
        # The text itself is not repeated: it may hold a password.
        raise DatabaseUrlError(f"{VARIABLE} is no URL: {LOOKS_LIKE}") from None
    return _checked(parsed)


def shown(url: URL) -> str:
    """The URL for people, without its password."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def _checked(url: URL) -> URL:
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
            raise DatabaseUrlError(f"{VARIABLE} names no file: {LOOKS_LIKE}")
        return url
    if url.drivername not in POSTGRES_NAMES:
        raise DatabaseUrlError(f"{VARIABLE} is for {url.drivername}, and flodl keeps to two: {LOOKS_LIKE}")
    if not url.database:
        raise DatabaseUrlError(f"{VARIABLE} names no database: {LOOKS_LIKE}")
    return url.set(drivername="postgresql+psycopg")
