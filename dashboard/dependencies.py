"""What routes are given: the database, the run that a path names, the feeds of runs."""

from typing import Annotated

from fastapi import Depends, Path, Request

from dashboard.feeds import Feeds
from flodl_store.database import Database
from flodl_store.runs import RunView, get_run


def _database(request: Request) -> Database:
    database = request.app.state.database
    assert isinstance(database, Database), "the app's lifespan opens it"
    return database


def _feeds(request: Request) -> Feeds:
    feeds = request.app.state.feeds
    assert isinstance(feeds, Feeds), "the app's lifespan makes them"
    return feeds


DatabaseDep = Annotated[Database, Depends(_database)]
FeedsDep = Annotated[Feeds, Depends(_feeds)]


def _run(
    database: DatabaseDep,
    run_id: Annotated[str, Path(description="A run's id, a beginning that only one run has, or latest", max_length=26)],
) -> RunView:
    return get_run(database, run_id)


RunDep = Annotated[RunView, Depends(_run)]
