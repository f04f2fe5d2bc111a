"""Opening, reading and writing, on SQLite and on PostgreSQL."""

from __future__ import annotations

import re
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError

from flodl_store.database import Database, connect_database, open_database
from flodl_store.errors import DatabaseUnreachableError, HomeError, SchemaError
from flodl_store.runs import list_runs
from flodl_store.schema import schema_status
from tests.flodl_store.rows import new_run
from tests.postgres import TEMPLATE, PostgresServer


def value(db: Database, query: str) -> object:
    with db.read() as connection:
        return connection.execute(text(query)).scalar()


def test_sqlite_is_set_up_for_readers_beside_a_writer(tmp_path: Path) -> None:
    with open_database(f"sqlite:///{tmp_path}/new/flodl.db") as db:
        assert value(db, "PRAGMA journal_mode") == "wal"
        assert value(db, "PRAGMA foreign_keys") == 1
        assert value(db, "PRAGMA synchronous") == 1
        assert value(db, "PRAGMA busy_timeout") == 10_000


def test_a_write_is_committed_whole(db: Database) -> None:
    with db.write() as connection:
        connection.execute(text("INSERT INTO graph (hash, label, svg) VALUES ('a', 'b', 'c'), ('d', 'e', 'f')"))
    assert value(db, "SELECT count(*) FROM graph") == 2


def test_a_write_that_fails_leaves_nothing(db: Database) -> None:
    def write_half() -> None:
        with db.write() as connection:
            connection.execute(text("INSERT INTO graph (hash, label, svg) VALUES ('a', 'b', 'c')"))
            connection.execute(text("INSERT INTO graph (hash, label, svg) VALUES ('a', 'b', 'c')"))

    with pytest.raises(IntegrityError):
        write_half()
    assert value(db, "SELECT count(*) FROM graph") == 0


def test_a_reader_sees_one_moment_and_does_not_wait(db: Database) -> None:
    with db.read() as connection:
        before = connection.execute(text("SELECT count(*) FROM run")).scalar()
        new_run(db)
        after = connection.execute(text("SELECT count(*) FROM run")).scalar()
    assert (before, after) == (0, 0)
    assert value(db, "SELECT count(*) FROM run") == 1


def test_a_write_that_reads_first_does_not_fail_for_it(db: Database) -> None:
    with db.write() as connection:
        connection.execute(text("SELECT count(*) FROM run")).scalar()
        connection.execute(text("INSERT INTO graph (hash, label, svg) VALUES ('a', 'b', 'c')"))
    assert value(db, "SELECT count(*) FROM graph") == 1


def test_a_sqlite_file_that_stays_locked_is_named(tmp_path: Path) -> None:
    path = tmp_path / "flodl.db"
    with open_database(f"sqlite:///{path}") as db, closing(sqlite3.connect(path)) as other:
        event.listen(db.engine, "connect", lambda connection, _: connection.execute("PRAGMA busy_timeout=0"))
        db.close()  # so that the next connection is a new one, which does not wait
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnreachableError, match=r"flodl\.db fails: database is locked$"):
            new_run(db)
        assert list_runs(db).items == ()
        other.rollback()
        new_run(db)


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        shown = re.escape(f"postgresql://me:***@127.0.0.1:{port}/x does not answer: ")
        with pytest.raises(DatabaseUnreachableError, match=shown) as caught:
            open_database(f"postgresql://me:secret@127.0.0.1:{port}/x")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_server_that_was_away_is_found_again(postgres: PostgresServer) -> None:
    with postgres.database(template=TEMPLATE) as name, open_database(postgres.url(name)) as db:
        new_run(db)
        with postgres.closed(name), pytest.raises(DatabaseUnreachableError):
            list_runs(db)
        assert len(list_runs(db).items) == 1


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flodl.db"
    path.write_bytes(b"no database, and longer than a header " * 100)
    with pytest.raises(SchemaError, match="is no database that flodl can read"):
        open_database(f"sqlite:///{path}")
    assert path.read_bytes().startswith(b"no database")


def test_a_home_that_is_a_file_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HomeError, match=r"file/flodl\.db \(.*\): set FLODL_HOME .* or FLODL_DATABASE_URL"):
        open_database(f"sqlite:///{tmp_path}/file/flodl.db")


def test_connecting_leaves_the_tables_alone(empty_url: str) -> None:
    with connect_database(empty_url) as db:
        assert schema_status(db).current is None
