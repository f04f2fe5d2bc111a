from __future__ import annotations

import json
import re

from fastapi.testclient import TestClient

from flodl_store.database import Database
from tests.flodl_store.rows import running

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \u2028"


def test_the_list_carries_its_first_runs(client: TestClient, db: Database) -> None:
    run_id = running(db)
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert run_id in page.text


def test_what_a_run_is_called_stays_text(client: TestClient, db: Database) -> None:
    run_id = running(db, name=HOSTILE, tags=(HOSTILE[:60],), notes=HOSTILE)
    for path in ("/", f"/runs/{run_id}"):
        page = client.get(path).text
        assert "<script>alert" not in page
        assert "<img src=x" not in page
    data = re.search(r'<script type="application/json" id="first-run">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["run"]["name"] == HOSTILE


def test_a_beginning_of_an_id_leads_to_the_address_that_lasts(client: TestClient, db: Database) -> None:
    run_id = running(db)
    for name in ("latest", run_id[:15], run_id.lower()):
        assert client.get(f"/runs/{name}").headers["location"] == f"/runs/{run_id}"


def test_an_unknown_run_is_a_page_that_says_so(client: TestClient) -> None:
    page = client.get("/runs/7ZZZ")
    assert page.status_code == 404
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "no run" in page.text
    assert 'href="/"' in page.text


def test_a_page_asks_for_nothing_from_elsewhere_and_holds_no_script_of_its_own(
    client: TestClient, db: Database
) -> None:
    run_id = running(db)
    for path in ("/", f"/runs/{run_id}", "/api/docs", "/nothing"):
        page = client.get(path).text
        assert not re.search(r'(src|href)="(https?:)?//', page)
        for attributes, content in re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL):
            assert "application/json" in attributes or content == ""
        assert not re.search(r"<[^>]*\son[a-z]+=", page)


def test_every_file_that_a_page_names_is_there_and_may_be_kept(client: TestClient, db: Database) -> None:
    page = client.get(f"/runs/{running(db)}").text
    files = set(re.findall(r"/static/\w+/[\w.-]+", page))
    assert any(file.endswith("/plotly.min.js") for file in files)
    for file in files:
        response = client.get(file)
        assert response.status_code == 200
        assert "immutable" in response.headers["cache-control"]
        for imported in re.findall(r'from "\./([\w.-]+)"', response.text) if "plotly" not in file else ():
            assert client.get(f"{file.rsplit('/', 1)[0]}/{imported}").status_code == 200
    assert client.get("/favicon.ico").headers["content-type"].startswith("image/svg+xml")
