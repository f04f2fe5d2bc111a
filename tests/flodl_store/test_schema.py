"""Migrations: they make the tables, can be undone, and are refused where they should be."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.command import downgrade
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from flodl_store import schema
from flodl_store.database import Database, connect_database, open_database
from flodl_store.errors import SchemaError
from flodl_store.schema import HEAD, KNOWN, make_current, migrations_folder, missing_file, schema_status, upgrade
from flodl_store.tables import Table
from tests.postgres import TEMPLATE, PostgresServer


def tables(db: Database) -> list[str]:
    with db.read() as connection:
        return sorted(inspect(connection).get_table_names())


def set_version(db: Database, version: str) -> None:
    with db.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})


def test_the_migrations_make_the_tables_that_the_code_uses(empty_url: str) -> None:
    with connect_database(empty_url) as db:
        upgrade(db)
        with db.read() as connection:
            options = {"compare_type": True, "compare_server_default": True}
            found = compare_metadata(MigrationContext.configure(connection, opts=options), Table.metadata)
    assert found == []


def test_sqlites_large_tables_are_kept_in_the_order_of_seq(tmp_path: Path) -> None:
    with open_database(f"sqlite:///{tmp_path}/flodl.db") as db, db.read() as connection:
        rows = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
        made: dict[str, str] = {row.name: row.sql for row in rows}
    wanted = {name for name, table in Table.metadata.tables.items() if not table.kwargs.get("sqlite_with_rowid", True)}
    assert {name for name, sql in made.items() if "WITHOUT ROWID" in sql} == wanted
    assert "step" in wanted


def test_a_downgrade_leaves_nothing_and_can_be_undone(empty_url: str) -> None:
    with connect_database(empty_url) as db:
        upgrade(db)
        made = tables(db)
        config = Config()
        config.set_main_option("script_location", str(migrations_folder()))
        config.set_main_option("path_separator", "os")
        with db.write() as connection:
            config.attributes["connection"] = connection
            downgrade(config, "base")
        assert tables(db) == ["alembic_version"]
        upgrade(db)
        assert tables(db) == made


def test_the_newest_migration_is_written_down() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [HEAD]
    assert tuple(script.revision for script in scripts.walk_revisions())[::-1] == KNOWN


def test_an_upgrade_says_where_the_database_stood(empty_url: str) -> None:
    with connect_database(empty_url) as db:
        assert upgrade(db).current is None
        assert upgrade(db).current == HEAD
        assert schema_status(db).is_current


def test_sqlite_is_brought_up_to_date_when_it_is_opened(tmp_path: Path) -> None:
    with connect_database(f"sqlite:///{tmp_path}/flodl.db") as db:
        make_current(db)
        assert schema_status(db).is_current


def test_postgresql_is_left_as_it_is(postgres: PostgresServer) -> None:
    with postgres.database() as name, connect_database(postgres.url(name)) as db:
        with pytest.raises(SchemaError, match="has no tables of flodl's yet: run flodl db upgrade"):
            make_current(db)
        assert tables(db) == []


def test_older_tables_of_postgresql_are_refused_with_the_advice(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "HEAD", "0002")  # as if this flodl had one migration more
    says = "are of version 0001, this flodl needs 0002: run flodl db upgrade"
    with postgres.database(template=TEMPLATE) as name, pytest.raises(SchemaError, match=says):
        open_database(postgres.url(name))


def test_tables_of_a_newer_flodl_are_refused(db: Database) -> None:
    set_version(db, "9999")
    for action in (make_current, upgrade):
        with pytest.raises(SchemaError, match="of version 9999, which this flodl does not know: use the newer flodl"):
            action(db)


def test_a_home_with_a_percent_sign_is_no_trouble(tmp_path: Path) -> None:
    with open_database(f"sqlite:///{tmp_path}/100%25/flodl.db") as db:
        assert schema_status(db).is_current


def test_a_file_that_is_not_there_is_named_and_not_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FLODL_DATABASE_URL", raising=False)
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "new"))
    assert missing_file() == tmp_path / "new" / "flodl.db"
    assert not (tmp_path / "new").exists()
    with open_database():
        assert missing_file() is None
