"""Runs the migrations on the connection that flodl_store gives, inside its transaction."""

from alembic import context

from flodl_store.database import open_database
from flodl_store.tables import Table


def migrate() -> None:
    """Bring the given connection's tables to the version asked for."""
    connection = context.config.attributes.get("connection")
    if connection is None:
        # Alembic's own command line, when a migration is being written: flodl itself always gives a connection.
        with open_database() as database, database.write() as connection:
            _run(connection)
    else:
        _run(connection)


def _run(connection: object) -> None:
    context.configure(
        connection=connection,  # type: ignore[arg-type]  # a mapping of anything, as Alembic types it
        target_metadata=Table.metadata,
        compare_type=True,
        render_as_batch=True,  # SQLite cannot alter most of a table in place
    )
    with context.begin_transaction():
        context.run_migrations()


migrate()
