"""The connection to the database: how it is opened, read and written.

SQLite runs in WAL mode: readers never wait for the writer. A write transaction is ``BEGIN IMMEDIATE`` with a busy
timeout, since one that reads first and then writes fails at once where somebody else has written in between.
``synchronous=NORMAL``: a killed process loses nothing that was committed, a power cut may lose the last second.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from flodl_store.database_url import database_url, shown
from flodl_store.errors import DatabaseUnreachableError
from flodl_store.sqlite_file import BUSY_TIMEOUT_S, prepare_file
from flodl_store.storable import storable_json

CONNECT_TIMEOUT_S = 5
"""How long PostgreSQL is given to answer at first."""
SILENCE_S = 10
"""How long PostgreSQL may be silent, or keep a row locked, before that counts as a failure."""

Clock = Callable[[], datetime]


def utc_clock() -> datetime:
    """The time, aware, in UTC."""
    return datetime.now(UTC)


class Database:
    """A pool of connections; may be used from any thread, not across a fork. Close it, or leave it as a context.

    Args:
        url: Checked by ``database_url``.
        clock: Tells the time of heartbeats, and when one is overdue.
    """

    def __init__(self, url: URL, *, clock: Clock = utc_clock) -> None:
        self.url = url
        self.clock = clock
        self.engine = _make_engine(url)

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is a file of ours."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def shown_url(self) -> str:
        """The URL for people, without its password."""
        return shown(self.url)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection that sees one moment of the database, however many queries it runs.

        Raises:
            DatabaseUnreachableError: The database does not answer, or the connection was lost.
        """
        options: dict[str, Any] = {}
        if not self.is_sqlite:
            options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with self._named_errors(), self.engine.connect().execution_options(**options) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A connection whose changes are committed together when the block ends, or not at all after an error.

        Raises:
            DatabaseUnreachableError: The database does not answer, or stays locked. Where that happens at the commit,
                the changes may have been made all the same.
        """
        with (
            self._named_errors(),
            self.engine.connect().execution_options(flodl_write=True) as connection,
            connection.begin(),
        ):
            yield connection

    def close(self) -> None:
        """Close every connection that is not in use. May be called twice; the next use opens new ones."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (OperationalError, InterfaceError, PoolTimeoutError) as error:
            what = "fails" if self.is_sqlite else "does not answer"
            raise DatabaseUnreachableError(f"the database {self.shown_url} {what}: {_reason(error)}") from error
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise DatabaseUnreachableError(f"the database {self.shown_url} is gone: {_reason(error)}") from error


def connect_database(url: str | None = None, *, clock: Clock = utc_clock) -> Database:
    """The database, with whatever tables it has; see ``open_database``.

    Raises:
        DatabaseUrlError: ``url`` names no database that flodl can use.
        DatabaseUnreachableError: It does not answer.
        HomeError: The folder of the SQLite file cannot be made, or the file not be opened.
        SchemaError: The file is none of SQLite's.
    """
    database = Database(database_url(url), clock=clock)
    try:
        if database.is_sqlite:
            prepare_file(Path(database.url.database or ""))
        with database.read() as connection:
            connection.exec_driver_sql("SELECT 1")
    except BaseException:
        database.close()
        raise
    return database


def open_database(url: str | None = None, *, clock: Clock = utc_clock) -> Database:
    """The database, with the tables that this flodl needs.

    A file of SQLite is made where it is missing and brought up to date, under a lock: several processes may do it at
    once. PostgreSQL is left as it is.

    Args:
        url: Instead of ``$FLODL_DATABASE_URL``, whose default is ``$FLODL_HOME/flodl.db``.
        clock: Tells the time of heartbeats, and when one is overdue.

    Raises:
        DatabaseUrlError: ``url`` names no database that flodl can use.
        DatabaseUnreachableError: It does not answer.
        SchemaError: Its tables are older, and it is PostgreSQL, or newer than this flodl.
        HomeError: The folder of the SQLite file cannot be made, or the file not be opened.
    """
    from flodl_store.schema import make_current  # which needs this module

    database = connect_database(url, clock=clock)
    try:
        make_current(database)
    except BaseException:
        database.close()
        raise
    return database


def _make_engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(
            url,
            json_serializer=storable_json,
            pool_pre_ping=True,  # a server that was started again is no error
            connect_args={
                "connect_timeout": CONNECT_TIMEOUT_S,
                "tcp_user_timeout": 1000 * SILENCE_S,
                "options": f"-c lock_timeout={SILENCE_S}s",
                "application_name": "flodl",
            },
        )
    engine = create_engine(url, json_serializer=storable_json, connect_args={"timeout": BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where we say, not where Python's module thinks
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    wants_to_write = connection.get_execution_options().get("flodl_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if wants_to_write else "BEGIN")


def _reason(error: Exception) -> str:
    text = str(getattr(error, "orig", None) or error)
    return " ".join(text.split())
