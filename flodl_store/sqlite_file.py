"""SQLite's file: made, put into WAL mode, and locked while its tables are changed."""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from flodl_store.errors import DatabaseUnreachableError, HomeError, SchemaError

BUSY_TIMEOUT_S = 10
"""How long a write waits for another process's."""


def prepare_file(path: Path) -> None:
    """Make the file and its folder where they are missing, and see that it is in WAL mode, which lasts in the file.

    Under the lock and before anybody of ours reads: changing the mode fails at once where somebody does.

    Raises:
        HomeError: The folder or the file cannot be made or opened for writing.
        SchemaError: The file is none of SQLite's.
        DatabaseUnreachableError: Somebody keeps it locked.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path):
            _make_writable(path)
            with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
    except OSError as error:
        raise HomeError(
            f"cannot write to {path} ({error.strerror or error}): set FLODL_HOME to a folder that you can write to, "
            "or FLODL_DATABASE_URL to another database"
        ) from error
    except sqlite3.OperationalError as error:
        raise DatabaseUnreachableError(f"the database {path} fails: {error}") from error
    except sqlite3.DatabaseError as error:
        raise SchemaError(f"{path} is no database that flodl can read: {error}") from error


def _make_writable(path: Path) -> None:
    """Make the file, or see that it can be written to; never by opening one that is there.

    To close any descriptor of the file drops the locks that SQLite holds on it for this whole process: another process
    would take itself for the last one, remove the log of writes under our connections, and ruin the database.
    """
    if not path.exists():
        path.touch()
    elif not path.is_file():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    elif not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes, and threads, out of the same block for the same file."""
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
