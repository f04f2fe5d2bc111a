from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from flodl_store.database import Database
from flodl_store.writer import RunWriter
from tests.dashboard.server_process import LIMIT_S, ServerProcess
from tests.flodl_store.rows import running, step


def rows(lines: Iterator[str]) -> Iterator[tuple[int, Any]]:
    """The rows messages of a stream: their id and data."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if fields.get("event") == "rows":
            yield int(fields["id"]), json.loads(fields["data"])
        fields = {}


def test_the_stream_goes_on_at_the_last_event_id(server: ServerProcess, db: Database) -> None:
    run_id = running(db)
    writer = RunWriter(db, run_id)
    writer.write([step(number) for number in range(5)])
    url = f"{server.url}/api/runs/{run_id}/stream?after=1"
    with httpx2.stream("GET", url, headers={"last-event-id": "3"}, timeout=LIMIT_S) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        messages = rows(response.iter_lines())
        cursor, message = next(messages)
        assert (cursor, message["after"], [row[0] for row in message["steps"]["rows"]]) == (5, 3, [4, 5])
        writer.write([step(5)])
        cursor, message = next(messages)
        assert (cursor, message["after"]) == (6, 5)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_an_open_stream_does_not_hold_up_the_end(
    server: ServerProcess, db: Database, signum: signal.Signals, code: int
) -> None:
    run_id = running(db)
    with httpx2.stream("GET", f"{server.url}/api/runs/{run_id}/stream", timeout=LIMIT_S) as response:
        lines = response.iter_lines()
        assert next(lines) == "retry: 1000"
        assert server.stop(signum) == code
        list(lines)  # it ends as it should: with its last chunk, not with a broken connection


def test_the_token_guards_the_real_server_too_and_is_not_logged(home: Path) -> None:
    process = ServerProcess(home, "--host", "0.0.0.0", "--token", "secret")
    process.start()
    try:
        assert httpx2.get(f"{process.url}/api/runs").status_code == 401
        assert httpx2.get(f"{process.url}/login?token=secret").status_code == 303
        answer = httpx2.get(f"{process.url}/api/runs", headers={"authorization": "Bearer secret"})
        assert answer.json() == {"items": [], "next": None}
        assert "server" not in answer.headers
    finally:
        process.close()
    assert "secret" not in process.log()
