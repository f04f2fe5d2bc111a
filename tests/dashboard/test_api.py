from __future__ import annotations

import math
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dashboard.app import create_app
from dashboard.settings import DashboardSettings
from flodl_store.database import Database
from flodl_store.runs import cancel_requested, end_run
from flodl_store.writer import RunWriter
from tests.flodl_store.rows import epoch, event, new_run, running, step


def problem(response: Any, status: int) -> str:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["title"]
    return str(body["detail"])


def test_a_new_home_has_an_empty_list(client: TestClient) -> None:
    assert client.get("/api/runs").json() == {"items": [], "next": None}


def test_the_list_is_newest_first_and_goes_on_at_its_cursor(client: TestClient, db: Database) -> None:
    ids = [new_run(db, name=f"run {number}").id for number in range(5)]
    first = client.get("/api/runs", params={"limit": 3}).json()
    second = client.get("/api/runs", params={"limit": 3, "cursor": first["next"]}).json()
    assert [run["id"] for run in first["items"] + second["items"]] == sorted(ids, reverse=True)
    assert second["next"] is None


def test_the_list_is_searched_and_filtered(client: TestClient, db: Database) -> None:
    new_run(db, name="wide net")
    ended = running(db, name="deep net")
    end_run(db, ended, "completed")
    assert [run["name"] for run in client.get("/api/runs", params={"search": "WIDE"}).json()["items"]] == ["wide net"]
    completed = client.get("/api/runs", params={"status": "completed"}).json()["items"]
    assert [run["id"] for run in completed] == [ended]


def test_a_run_in_the_list_carries_its_loss_by_epoch(client: TestClient, db: Database) -> None:
    run_id = running(db)
    RunWriter(db, run_id).write([epoch(0, avg_loss=0.5), epoch(1, avg_loss=math.nan), epoch(2, avg_loss=0.1)])
    (run,) = client.get("/api/runs").json()["items"]
    assert run["loss_by_epoch"] == [0.5, "NaN", 0.1]


def test_a_run_is_found_by_id_beginning_and_latest(client: TestClient, db: Database) -> None:
    run_id = running(db, name="mine", tags=("a", "b"))
    for name in (run_id, run_id[:20], run_id.lower(), "latest"):
        run = client.get(f"/api/runs/{name}").json()
        assert (run["id"], run["name"], run["status"], run["tags"]) == (run_id, "mine", "running", ["a", "b"])
    assert [worker["device"] for worker in client.get(f"/api/runs/{run_id}/workers").json()["items"]] == [
        "cpu",
        "cpu@2.5",
    ]


@pytest.mark.parametrize(
    "path", ["", "/steps", "/epochs", "/events", "/workers", "/state", "/graph.svg", "/stream", "/files"]
)
def test_an_unknown_run_is_a_problem_that_names_it(client: TestClient, path: str) -> None:
    assert "no run '7ZZZ'" in problem(client.get(f"/api/runs/7ZZZ{path}"), 404)


def test_what_was_recorded_comes_in_order_and_in_parts(client: TestClient, db: Database) -> None:
    run_id = running(db)
    RunWriter(db, run_id).write([step(0), event(1), step(2, loss=math.nan), step(3, loss=-math.inf), epoch(0)])
    first = client.get(f"/api/runs/{run_id}/steps", params={"limit": 2}).json()
    assert [(row["seq"], row["loss"]) for row in first["items"]] == [(1, 1.0), (3, "NaN")]
    rest = client.get(f"/api/runs/{run_id}/steps", params={"limit": 2, "cursor": first["next"]}).json()
    assert [(row["seq"], row["loss"]) for row in rest["items"]] == [(4, "-Infinity")]
    assert rest["next"] is None
    (average,) = client.get(f"/api/runs/{run_id}/events").json()["items"]
    assert (average["kind"], average["payload"]) == ("sync", {"round": 1})
    (ended,) = client.get(f"/api/runs/{run_id}/epochs").json()["items"]
    assert (ended["eval"]["accuracy"], len(ended["ranks"]), ended["ranks"][1]["scalars"]) == (0.9, 2, {"grad": 2.0})


def test_cancelling_leaves_a_wish_with_a_run_under_way(client: TestClient, db: Database) -> None:
    run_id = running(db)
    answer = client.post(f"/api/runs/{run_id}/cancel")
    assert (answer.status_code, answer.json()["accepted"]) == (202, True)
    assert cancel_requested(db, run_id)


def test_cancelling_a_run_that_has_ended_changes_nothing(client: TestClient, db: Database) -> None:
    run_id = running(db)
    end_run(db, run_id, "completed")
    assert client.post(f"/api/runs/{run_id}/cancel").json() == {"id": run_id, "accepted": False, "status": "completed"}


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/api/nothing", 404, "nothing at /api/nothing"),
        ("/api/runs?limit=0", 422, "limit"),
        ("/api/runs?status=odd", 422, "status"),
        ("/api/runs?cursor=odd", 400, "cursor"),
    ],
)
def test_a_bad_question_is_a_problem_that_says_what_is_wrong(
    client: TestClient, path: str, status: int, says: str
) -> None:
    assert says in problem(client.get(path), status)


def test_a_method_that_a_path_does_not_take_is_a_problem(client: TestClient) -> None:
    assert "does not take DELETE" in problem(client.delete("/api/runs"), 405)


def test_it_is_alive_and_ready(client: TestClient) -> None:
    assert client.get("/healthz").json() == client.get("/readyz").json() == {"status": "ok"}


def test_a_database_that_fails_is_a_problem_and_not_ready(
    client: TestClient, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.app.state.database is not db  # type: ignore[attr-defined] # Starlette's, typed as any ASGI app
    database: Database = client.app.state.database  # type: ignore[attr-defined]
    with database.engine.connect():  # the pool gives out connections that are open: these find no file any more
        pass
    database.close()
    monkeypatch.setattr(database, "engine", _engine_without_file(database))
    for path in ("/readyz", "/api/runs"):
        response = client.get(path)
        assert "fails" in problem(response, 503)
        assert response.headers["retry-after"] == "5"
    assert client.get("/healthz").status_code == 200
    database.close()


def _engine_without_file(database: Database) -> Any:
    from sqlalchemy import create_engine

    return create_engine(database.url.set(database="/nowhere/flodl.db"))


def test_every_operation_is_described_with_its_problems(client: TestClient) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    assert {"/api/runs", "/api/runs/{run_id}", "/api/runs/{run_id}/stream", "/healthz"} <= paths.keys()
    for path, methods in paths.items():
        for operation in methods.values():
            assert operation["summary"]
            if path.startswith("/api/runs/{run_id}"):
                assert "application/problem+json" in operation["responses"]["404"]["content"]
    assert "/api/runs/{run_id}/state" in client.get("/api/docs").text


def test_an_unforeseen_error_is_a_problem_with_the_headers_of_every_answer(db: Database) -> None:
    app = create_app(DashboardSettings())

    @app.get("/api/broken")
    def broken() -> None:
        raise ZeroDivisionError

    with TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False) as client:
        response = client.get("/api/broken")
    assert "fault of flodl's" in problem(response, 500)
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
