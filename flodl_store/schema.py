"""The version of a database's tables: reading it, bringing it up to date."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DatabaseError

from flodl_store.database import Database
from flodl_store.database_url import database_url
from flodl_store.errors import SchemaError
from flodl_store.sqlite_file import locked

HEAD = "0001"
"""The newest migration. Written down so that Alembic is loaded only where there is something to migrate."""
KNOWN = ("0001",)
"""Every migration, oldest first."""
UPGRADE_LOCK = 0x666C6F64
"""Key of PostgreSQL's advisory lock under which one process at a time migrates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStatus:
    """Where a database stands.

    Attributes:
        current: Its version, or None where it has no tables of ours.
        head: The version that this flodl needs.
    """

    current: str | None
    head: str

    @property
    def is_current(self) -> bool:
        """Whether there is nothing to do."""
        return self.current == self.head


def schema_status(database: Database) -> SchemaStatus:
    """Where ``database`` stands.

    Raises:
        SchemaError: Its file is none of SQLite's.
        DatabaseUnreachableError: It does not answer.
    """
    try:
        with database.read() as connection:
            return SchemaStatus(current=_version(connection), head=HEAD)
    except DatabaseError as error:
        raise SchemaError(f"{database.shown_url} is no database that flodl can read: {error.orig}") from error


def missing_file() -> Path | None:
    """The SQLite file that would be used and is not there; None where there is one, or the database is another.

    Raises:
        DatabaseUrlError: ``FLODL_DATABASE_URL`` names no database that flodl can use.
    """
    url = database_url()
    path = Path(url.database or "")
    return path if url.get_backend_name() == "sqlite" and not path.exists() else None


def make_current(database: Database) -> None:
    """Bring a SQLite file up to date; check that PostgreSQL is.

    Raises:
        SchemaError: PostgreSQL's tables are older, or anybody's are newer than this flodl.
        DatabaseUnreachableError: The database does not answer.
    """
    status = schema_status(database)
    _refuse_newer(database, status)
    if status.is_current:
        return
    if database.is_sqlite:
        upgrade(database)
    elif status.current is None:
        raise SchemaError(f"{database.shown_url} has no tables of flodl's yet: run flodl db upgrade")
    else:
        raise SchemaError(
            f"the tables of {database.shown_url} are of version {status.current}, this flodl needs {HEAD}: "
            "run flodl db upgrade"
        )


def upgrade(database: Database) -> SchemaStatus:
    """Bring the tables up to date, in one transaction; several processes may do so at once.

    Returns:
        Where the database stood before.

    Raises:
        SchemaError: The tables are newer than this flodl.
        DatabaseUnreachableError: The database does not answer.
    """
    with _alone(database):
        status = schema_status(database)
        _refuse_newer(database, status)
        if not status.is_current:
            _migrate(database)
    return status


def migrations_folder() -> Path:
    """Where the migrations lie: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def _migrate(database: Database) -> None:
    from alembic import command  # takes a while to import
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_LOCK})
            if _version(connection) == HEAD:
                return
        config.attributes["connection"] = connection
        command.upgrade(config, HEAD)


def _alone(database: Database) -> AbstractContextManager[None]:
    """Keep other processes of this machine from migrating the same file meanwhile."""
    return locked(Path(database.url.database or "")) if database.is_sqlite else nullcontext()


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return version


def _refuse_newer(database: Database, status: SchemaStatus) -> None:
    if status.current is not None and status.current not in KNOWN:
        raise SchemaError(
            f"the tables of {database.shown_url} are of version {status.current}, which this flodl does not know: "
            "use the newer flodl that made them"
        )
