from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from flodl_store.artifacts import artifact_root, save_artifact
from flodl_store.database import Database
from flodl_store.graphs import attach_graph, save_graph
from tests.flodl_store.rows import running

CONTENT = bytes(range(256)) * 2000
SHA = hashlib.sha256(CONTENT).hexdigest()
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.fixture
def run_id(db: Database) -> str:
    return running(db, name='my "net"/../x')


@pytest.fixture
def file(db: Database, run_id: str) -> Path:
    path = artifact_root() / run_id / "state.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    save_artifact(db, run_id, "state", path)
    return path


@pytest.mark.usefixtures("file")
def test_the_state_is_the_file_whose_digest_was_recorded(client: TestClient, run_id: str) -> None:
    response = client.get(f"/api/runs/{run_id}/state")
    assert response.status_code == 200
    assert response.content == CONTENT
    assert response.headers["etag"] == f'"{SHA}"'
    assert response.headers["repr-digest"] == f"sha-256=:{base64.b64encode(hashlib.sha256(CONTENT).digest()).decode()}:"
    assert response.headers["content-length"] == str(len(CONTENT))
    assert response.headers["content-disposition"] == f'attachment; filename="my-net-..-x-{run_id}.safetensors"'


@pytest.mark.usefixtures("file")
def test_head_says_the_same_without_the_file(client: TestClient, run_id: str) -> None:
    whole = client.get(f"/api/runs/{run_id}/state")
    head = client.head(f"/api/runs/{run_id}/state")
    assert head.content == b""
    assert {name: head.headers[name] for name in ("etag", "content-length", "repr-digest")} == {
        name: whole.headers[name] for name in ("etag", "content-length", "repr-digest")
    }


@pytest.mark.usefixtures("file")
def test_a_range_is_its_part(client: TestClient, run_id: str) -> None:
    response = client.get(f"/api/runs/{run_id}/state", headers={"range": "bytes=300-299999"})
    assert response.status_code == 206
    assert response.content == CONTENT[300:300000]
    assert response.headers["content-range"] == f"bytes 300-299999/{len(CONTENT)}"


@pytest.mark.usefixtures("file")
def test_a_range_of_another_file_is_the_whole_of_this_one(client: TestClient, run_id: str) -> None:
    path = f"/api/runs/{run_id}/state"
    other = client.get(path, headers={"range": "bytes=0-9", "if-range": '"other"'})
    same = client.get(path, headers={"range": "bytes=0-9", "if-range": f'"{SHA}"'})
    assert (other.status_code, len(other.content)) == (200, len(CONTENT))
    assert (same.status_code, len(same.content)) == (206, 10)


@pytest.mark.usefixtures("file")
def test_a_range_outside_of_the_file_is_a_problem(client: TestClient, run_id: str) -> None:
    response = client.get(f"/api/runs/{run_id}/state", headers={"range": f"bytes={len(CONTENT)}-"})
    assert response.status_code == 416
    assert response.headers["content-range"] == f"bytes */{len(CONTENT)}"
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.usefixtures("file")
def test_whoever_has_the_file_is_not_sent_it_again(client: TestClient, run_id: str) -> None:
    response = client.get(f"/api/runs/{run_id}/state", headers={"if-none-match": f'"{SHA}"'})
    assert (response.status_code, response.content) == (304, b"")


def test_the_files_are_listed(client: TestClient, run_id: str, file: Path) -> None:
    (listed,) = client.get(f"/api/runs/{run_id}/files").json()["items"]
    assert (listed["kind"], listed["size_bytes"], listed["sha256"]) == ("state", file.stat().st_size, SHA)
    assert "path" not in listed


def test_a_run_without_state_says_when_there_will_be_one(client: TestClient, run_id: str) -> None:
    response = client.get(f"/api/runs/{run_id}/state")
    assert response.status_code == 404
    assert "when training ends" in response.json()["detail"]


def test_a_file_that_has_gone_or_changed_is_not_sent(client: TestClient, run_id: str, file: Path) -> None:
    file.write_bytes(b"short")
    assert client.get(f"/api/runs/{run_id}/state").status_code == 409
    file.unlink()
    assert client.get(f"/api/runs/{run_id}/state").status_code == 410


def test_a_link_out_of_the_artifacts_is_not_followed(
    client: TestClient, run_id: str, file: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(CONTENT)
    file.unlink()
    file.symlink_to(outside)
    assert client.get(f"/api/runs/{run_id}/state").status_code == 410


def test_the_graph_is_shown_inert(client: TestClient, db: Database, run_id: str) -> None:
    assert client.get(f"/api/runs/{run_id}/graph.svg").status_code == 404
    save_graph(db, "a" * 64, "net", SVG)
    attach_graph(db, run_id, "a" * 64)
    response = client.get(f"/api/runs/{run_id}/graph.svg")
    assert response.text == SVG
    assert response.headers["content-type"] == "image/svg+xml"
    policy = response.headers["content-security-policy"]
    assert "sandbox" in policy
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert client.get(f"/api/runs/{run_id}/graph.svg", headers={"if-none-match": f'"{"a" * 64}"'}).status_code == 304
