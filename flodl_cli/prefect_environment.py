"""Environment variables of the programs that ``flodl up`` starts."""

import os
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import URL

from flodl_store.database_url import database_url

# The reader's own server must not be reached with somebody else's key or settings.
_NOT_OURS = ("PREFECT_API_KEY", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH", "PREFECT_API_URL")


def service_environment(
    base: Mapping[str, str], *, home: Path, started_in: Path, api_url: str, own_server: bool, dashboard_url: str
) -> dict[str, str]:
    """The environment of the server, of what runs flows, and of the dashboard.

    Args:
        base: What it is made from.
        home: ``$FLODL_HOME``, absolute.
        started_in: Folder where flodl was started.
        api_url: Where Prefect's API is, or will be.
        own_server: Whether that server is ours.
        dashboard_url: Where the dashboard will be.
    """
    environment = dict(base)
    if own_server:
        for name in _NOT_OURS:
            environment.pop(name, None)
        environment |= _own_server(home, api_url)
    # What is relative is so to the folder where flodl was started, and these programs run elsewhere.
    if environment.get("FLODL_DATA"):
        environment["FLODL_DATA"] = str(started_in / environment["FLODL_DATA"])
    if environment.get("FLODL_DATABASE_URL"):
        environment["FLODL_DATABASE_URL"] = _absolute(database_url(environment["FLODL_DATABASE_URL"]), started_in)
    return environment | {
        "FLODL_HOME": str(home),
        "FLODL_STARTED_IN": str(started_in),
        "FLODL_DASHBOARD_URL": dashboard_url,
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_RUNNER_POLL_FREQUENCY": environment.get("PREFECT_RUNNER_POLL_FREQUENCY", "2"),
        "PREFECT_LOGGING_COLORS": "false",
        "DO_NOT_TRACK": "1",
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _absolute(url: URL, started_in: Path) -> str:
    if url.get_backend_name() == "sqlite":
        url = url.set(database=str(started_in / (url.database or "")))
    return url.render_as_string(hide_password=False)


def _own_server(home: Path, api_url: str) -> dict[str, str]:
    folder = home / "prefect"
    address = api_url.removesuffix("/api")
    return {
        "PREFECT_HOME": str(folder),
        "PREFECT_API_URL": api_url,
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder / 'prefect.db'}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{address},{address.replace('127.0.0.1', 'localhost')}",
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
    }


def enter_environment(environment: Mapping[str, str]) -> None:
    """Make it this process's own. Prefect reads it when it is imported, which must come after."""
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)
