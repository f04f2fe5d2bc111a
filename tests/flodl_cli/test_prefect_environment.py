"""What the services of ``flodl up`` find in their environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flodl_cli.prefect_environment import service_environment


def environment(base: Mapping[str, str], *, own_server: bool = True) -> dict[str, str]:
    return service_environment(
        base,
        home=Path("/home/flodl"),
        started_in=Path("/project"),
        api_url="http://127.0.0.1:4300/api",
        own_server=own_server,
        dashboard_url="http://127.0.0.1:8000",
    )


def test_an_own_server_is_closed_quiet_and_in_the_home() -> None:
    found = environment({"PATH": "/bin", "PREFECT_API_KEY": "secret", "PREFECT_PROFILE": "work"})
    assert found["PATH"] == "/bin"
    assert not {"PREFECT_API_KEY", "PREFECT_PROFILE"} & set(found)
    assert found["PREFECT_HOME"] == "/home/flodl/prefect"
    assert found["PREFECT_API_URL"] == "http://127.0.0.1:4300/api"
    assert found["PREFECT_SERVER_DATABASE_CONNECTION_URL"] == "sqlite+aiosqlite:////home/flodl/prefect/prefect.db"
    assert found["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] == "http://127.0.0.1:4300,http://localhost:4300"
    assert found["PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED"] == "true"
    assert (found["PREFECT_SERVER_ANALYTICS_ENABLED"], found["DO_NOT_TRACK"]) == ("false", "1")
    assert found["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] == "false"


def test_somebody_elses_server_keeps_its_settings() -> None:
    base = {"PREFECT_API_URL": "https://prefect.example/api", "PREFECT_API_KEY": "secret"}
    found = environment(base, own_server=False)
    assert {name: found[name] for name in base} == base
    assert "PREFECT_HOME" not in found


def test_relative_paths_mean_the_folder_where_flodl_was_started() -> None:
    found = environment({"FLODL_DATA": "data", "FLODL_DATABASE_URL": "sqlite:///runs.db"})
    assert found["FLODL_STARTED_IN"] == "/project"
    assert found["FLODL_DATA"] == "/project/data"
    assert found["FLODL_DATABASE_URL"] == "sqlite:////project/runs.db"
    absolute = environment({"FLODL_DATA": "/data", "FLODL_DATABASE_URL": "postgresql://u:p@h/n"})
    assert absolute["FLODL_DATA"] == "/data"
    assert absolute["FLODL_DATABASE_URL"] == "postgresql+psycopg://u:p@h/n"
