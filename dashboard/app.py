"""The dashboard as an ASGI application. Nothing opens before its lifespan begins."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from dashboard import api_files, api_runs, api_series, assets, health, login, pages, stream
from dashboard.feeds import Feeds
from dashboard.guard import Guard
from dashboard.problems import add_problem_handlers
from dashboard.settings import DashboardSettings
from flodl_store.database import open_database


def create_app(settings: DashboardSettings) -> FastAPI:
    """The application.

    Its lifespan raises what ``open_database`` raises. ``app.state.feeds.close()`` ends the open streams: whoever serves
    the application calls it when asked to stop, since a server waits for its connections before the lifespan ends.
    """
    app = FastAPI(
        title="flodl",
        version=version("flodl"),
        description="Runs, what they recorded and what they trained.",
        lifespan=_lifespan,
        docs_url=None,  # FastAPI's own pages fetch their scripts from elsewhere
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    app.state.settings = settings
    app.add_middleware(Guard, settings=settings)
    add_problem_handlers(app)
    for routes in (pages, login, assets, health, api_runs, api_series, api_files, stream):
        app.include_router(routes.router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    with open_database(app.state.settings.database_url) as database:
        app.state.database = database
        app.state.feeds = Feeds(database)
        try:
            yield
        finally:
            app.state.feeds.close()
