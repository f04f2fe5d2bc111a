"""Errors as answers: RFC 9457 problem documents under ``/api``, a page elsewhere."""

import logging
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from dashboard.headers import SECURITY_HEADERS
from dashboard.templates import render
from flodl_store.errors import CursorError, StoreError, UnknownRunError

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
MACHINE_PATHS = ("/api/", "/healthz", "/readyz")


class Problem(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str = Field(default="about:blank", description="Kind of problem; about:blank says no more than the status")
    title: str = Field(description="The status in words")
    status: int = Field(description="HTTP status")
    detail: str = Field(description="What went wrong and what to do")
    instance: str = Field(description="Path that was asked for")


PROBLEM_RESPONSE = {"model": Problem, "content": {MEDIA_TYPE: {}}}


class ProblemError(Exception):
    """Ends a request with a problem.

    Attributes:
        status: HTTP status.
        detail: One line for whoever asked.
        headers: Further headers of the answer.
    """

    def __init__(self, status: HTTPStatus, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})


def answer_problem(path: str, status: HTTPStatus, detail: str, *, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that went wrong: for a program or for a person, as its path tells."""
    more = dict(headers or {})
    if path.startswith(MACHINE_PATHS):
        problem = Problem(title=status.phrase, status=status, detail=detail, instance=path)
        return JSONResponse(problem.model_dump(), status, headers=more, media_type=MEDIA_TYPE)
    return render("error.html", status=status, headers=more, title=status.phrase, detail=detail)


def add_problem_handlers(app: FastAPI) -> None:
    """Have every error of ``app`` answered as a problem."""
    app.add_exception_handler(ProblemError, _problem)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StoreError, _store)
    app.add_exception_handler(Exception, _fault)


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return answer_problem(request.url.path, error.status, error.detail, headers=error.headers)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    detail = error.detail if error.detail != status.phrase else _http_detail(request, status)
    return answer_problem(request.url.path, status, detail, headers=error.headers)


def _http_detail(request: Request, status: HTTPStatus) -> str:
    if status == HTTPStatus.NOT_FOUND:
        return f"There is nothing at {request.url.path}"
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"{request.url.path} does not take {request.method}"
    return status.description or status.phrase


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    lines = [f"{'.'.join(str(part) for part in item['loc'][1:])}: {item['msg']}" for item in error.errors()]
    return answer_problem(request.url.path, HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(lines))


async def _store(request: Request, error: Exception) -> Response:
    if isinstance(error, UnknownRunError):
        return answer_problem(request.url.path, HTTPStatus.NOT_FOUND, str(error))
    if isinstance(error, CursorError):
        return answer_problem(request.url.path, HTTPStatus.BAD_REQUEST, str(error))
    log.warning("%s: %s", request.url.path, error)
    return answer_problem(request.url.path, HTTPStatus.SERVICE_UNAVAILABLE, str(error), headers={"retry-after": "5"})


async def _fault(request: Request, error: Exception) -> Response:
    # This one answers outside of all middleware, which then raises the error again for the server's log.
    detail = "A fault of flodl's; what the dashboard logged says where"
    return answer_problem(request.url.path, HTTPStatus.INTERNAL_SERVER_ERROR, detail, headers=SECURITY_HEADERS)
