from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from dashboard.app import create_app
from dashboard.settings import DashboardSettings
from flodl_store.database import Database
from tests.flodl_store.rows import running

ADDRESS = "http://192.168.0.7:8000"


@pytest.fixture
def guarded(db: Database) -> Iterator[TestClient]:
    app = create_app(DashboardSettings(host="0.0.0.0", token="secret"))
    with TestClient(app, base_url=ADDRESS, follow_redirects=False) as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/api/runs", "/nothing", "/static/0/base.css", "/healthz"])
def test_every_answer_has_the_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert re.search(r"script-src 'self'(;|$)", policy)
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"


def test_a_foreign_host_name_is_refused_before_anything_else(client: TestClient) -> None:
    response = client.get("/api/runs", headers={"host": "evil.example"})
    assert response.status_code == 421
    assert "--allow-host" in response.json()["detail"]


def test_a_write_from_a_foreign_page_is_refused(client: TestClient, db: Database) -> None:
    run_id = running(db)
    response = client.post(f"/api/runs/{run_id}/cancel", headers={"origin": "http://evil.example"})
    assert response.status_code == 403
    assert client.get(f"/api/runs/{run_id}").json()["cancel_requested_at"] is None


@pytest.mark.parametrize("path", ["/api/runs", "/api/openapi.json", "/readyz", "/api/runs/latest/stream"])
def test_without_the_token_a_program_is_told_how_to_show_it(guarded: TestClient, path: str) -> None:
    response = guarded.get(path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert guarded.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401


def test_with_the_token_a_program_is_answered(guarded: TestClient) -> None:
    assert guarded.get("/api/runs", headers={"authorization": "Bearer secret"}).status_code == 200


def test_without_the_token_a_person_is_asked_for_it(guarded: TestClient) -> None:
    response = guarded.get("/runs/latest")
    assert (response.status_code, response.headers["location"]) == (303, "/login?next=/runs/latest")
    page = guarded.get(response.headers["location"])
    assert page.status_code == 200
    assert 'name="token"' in page.text


@pytest.mark.parametrize("by_form", [True, False])
def test_the_token_is_traded_for_a_cookie_that_is_not_the_token(guarded: TestClient, by_form: bool) -> None:
    form = {"token": "secret", "next": "/runs/x"}
    response = guarded.post("/login", data=form) if by_form else guarded.get("/login", params=form)
    assert (response.status_code, response.headers["location"]) == (303, "/runs/x")
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "secret" not in cookie
    assert guarded.get("/").status_code == 200


@pytest.mark.parametrize("token", ["", "wrong", "secret2"])
def test_a_wrong_token_gives_no_cookie(guarded: TestClient, token: str) -> None:
    response = guarded.post("/login", data={"token": token})
    assert response.status_code == 401
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize(
    "elsewhere", ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)"]
)
def test_the_login_leads_to_no_other_host(guarded: TestClient, elsewhere: str) -> None:
    response = guarded.get("/login", params={"token": "secret", "next": elsewhere})
    assert response.headers["location"] == "/"


@pytest.mark.parametrize(
    "path",
    [
        "/static/{v}/../app.py",
        "/static/{v}/..%2fapp.py",
        "/static/{v}/%2e%2e%2fapp.py",
        "/static/0/base.css",
        "/static/{v}/none.js",
    ],
)
def test_no_path_reaches_the_file_system(client: TestClient, path: str) -> None:
    version = re.search(r"/static/(\w+)/base.css", client.get("/").text)
    assert version is not None
    assert client.get(path.format(v=version[1])).status_code == 404
