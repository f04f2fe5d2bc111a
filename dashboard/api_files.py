"""A run's files over HTTP: the trained state and the picture of its model."""

import base64
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from dashboard.byte_ranges import ByteRange, UnsatisfiableRangeError, parse_range
from dashboard.dependencies import DatabaseDep, RunDep
from dashboard.headers import INERT_POLICY
from dashboard.problems import PROBLEM_RESPONSE, ProblemError
from dashboard.public import FilePublic, Listing
from flodl_store.artifacts import ArtifactView, artifact_root, find_artifact, list_artifacts
from flodl_store.graphs import get_graph
from flodl_store.runs import RunView

router = APIRouter(
    prefix="/api/runs/{run_id}", tags=["files"], responses={404: PROBLEM_RESPONSE, 503: PROBLEM_RESPONSE}
)

STATE_TYPE = "application/vnd.safetensors"
CHUNK_BYTES = 1 << 18
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@router.get("/files")
def read_files(database: DatabaseDep, run: RunDep) -> Listing[FilePublic]:
    """The run's files, oldest first."""
    return Listing(items=[FilePublic.model_validate(file) for file in list_artifacts(database, run.id)], next=None)


@router.head("/state", include_in_schema=False)
@router.get(
    "/state",
    response_class=Response,
    responses={
        200: {"content": {STATE_TYPE: {}}, "description": "The file; ETag is its SHA-256"},
        206: {"content": {STATE_TYPE: {}}, "description": "The part that Range asks for"},
        304: {"description": "The file is the one that If-None-Match names"},
        416: PROBLEM_RESPONSE,
    },
)
def read_state(request: Request, database: DatabaseDep, run: RunDep) -> Response:
    """The trained state: averaged parameters and buffers, a safetensors file."""
    artifact = find_artifact(database, run.id, "state")
    if artifact is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, f"run {run.id} has no trained state: it is saved when training ends")
    file = _file_of(artifact)
    headers = _state_headers(run, artifact)
    if _names(request.headers.get("if-none-match"), headers["etag"]):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    part = _asked_part(request, artifact, headers["etag"])
    status = HTTPStatus.OK if part is None else HTTPStatus.PARTIAL_CONTENT
    if part is not None:
        headers["content-range"] = part.content_range(artifact.size_bytes)
    part = part or ByteRange(0, artifact.size_bytes)
    headers["content-length"] = str(part.size)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=STATE_TYPE)
    return StreamingResponse(_chunks(file, part), status, headers=headers, media_type=STATE_TYPE)


@router.head("/graph.svg", include_in_schema=False)
@router.get(
    "/graph.svg",
    response_class=Response,
    responses={200: {"content": {"image/svg+xml": {}}}, 304: {"description": "Unchanged"}},
)
def read_graph(request: Request, database: DatabaseDep, run: RunDep) -> Response:
    """The model's graph as a picture."""
    graph = get_graph(database, run.graph_hash) if run.graph_hash else None
    if graph is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, f"run {run.id} has no model graph")
    headers = {"etag": f'"{graph.hash}"', "content-security-policy": INERT_POLICY, "cache-control": "no-cache"}
    if _names(request.headers.get("if-none-match"), headers["etag"]):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(graph.svg, media_type="image/svg+xml", headers=headers)


def _file_of(artifact: ArtifactView) -> Path:
    # The path is the store's; nothing of the request is in it. It is held to the artifacts' folder all the same.
    file = artifact.file.resolve()
    if not file.is_relative_to(artifact_root().resolve()) or not file.is_file():
        raise ProblemError(HTTPStatus.GONE, f"the file of run {artifact.run_id} is not where it was recorded any more")
    if file.stat().st_size != artifact.size_bytes:
        raise ProblemError(
            HTTPStatus.CONFLICT, f"the file of run {artifact.run_id} has changed since it was recorded: it is not sent"
        )
    return file


def _state_headers(run: RunView, artifact: ArtifactView) -> dict[str, str]:
    name = _UNSAFE.sub("-", run.name or run.recipe).strip("-.")[:60] or "run"
    digest = base64.b64encode(bytes.fromhex(artifact.sha256)).decode()
    return {
        "etag": f'"{artifact.sha256}"',
        "repr-digest": f"sha-256=:{digest}:",
        "accept-ranges": "bytes",
        "content-disposition": f'attachment; filename="{name}-{run.id}.safetensors"',
        "cache-control": "no-cache",
    }


def _asked_part(request: Request, artifact: ArtifactView, etag: str) -> ByteRange | None:
    condition = request.headers.get("if-range")
    if condition is not None and condition.strip() != etag:
        return None
    try:
        return parse_range(request.headers.get("range"), artifact.size_bytes)
    except UnsatisfiableRangeError as error:
        headers = {"content-range": f"bytes */{artifact.size_bytes}"}
        raise ProblemError(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, str(error), headers=headers) from error


def _names(header: str | None, etag: str) -> bool:
    if header is None:
        return False
    return header.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in header.split(","))


def _chunks(file: Path, part: ByteRange) -> Iterator[bytes]:
    with file.open("rb") as opened:
        opened.seek(part.start)
        left = part.size
        while left > 0 and (chunk := opened.read(min(CHUNK_BYTES, left))):
            left -= len(chunk)
            yield chunk
