"""``flodl db``: the database's tables."""

from typing import Annotated, Any

import typer

from flodl_store.plain_json import dump_json

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]

db = typer.Typer(name="db", help="Look after the database's tables.", no_args_is_help=True)


@db.command()
def status(as_json: AsJson = False) -> None:
    """Say which database is used and whether its tables are up to date."""
    from flodl_store.database import connect_database  # its libraries take a while to import
    from flodl_store.schema import HEAD, SchemaStatus, missing_file, schema_status

    path = missing_file()
    if path is not None:  # looking makes no file
        _say(f"sqlite:///{path}", SchemaStatus(current=None, head=HEAD), as_json=as_json)
        return
    with connect_database() as database:
        _say(database.shown_url, schema_status(database), as_json=as_json)


@db.command()
def upgrade(as_json: AsJson = False) -> None:
    """Bring the tables up to date; nothing happens where they are."""
    from flodl_store.database import connect_database  # its libraries take a while to import
    from flodl_store.schema import schema_status
    from flodl_store.schema import upgrade as bring_up_to_date

    with connect_database() as database:
        before = bring_up_to_date(database)
        _say(database.shown_url, schema_status(database), as_json=as_json, before=before.current)


def _say(url: str, found: Any, *, as_json: bool, **others: str | None) -> None:
    if as_json:
        fields = {"database": url, "current": found.current, "needed": found.head, "up_to_date": found.is_current}
        print(dump_json({**fields, **others}))
        return
    print(f"database: {url}")
    if found.is_current:
        print(f"tables:   version {found.current}, up to date")
    else:
        print(f"tables:   {found.current or 'none'}, and {found.head} is needed: flodl db upgrade")
