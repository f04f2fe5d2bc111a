"""``/login``: the token for a cookie. The token does not stay in the address, and no other page reads the cookie."""

from http import HTTPStatus
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import RedirectResponse, Response

from dashboard.access import cookie_name, cookie_value, same_token
from dashboard.settings import DashboardSettings
from dashboard.templates import render

router = APIRouter(include_in_schema=False)

COOKIE_LASTS_S = 30 * 24 * 3600
LONGEST_BODY = 4096


def _settings(request: Request) -> DashboardSettings:
    settings = request.app.state.settings
    assert isinstance(settings, DashboardSettings)
    return settings


Settings = Annotated[DashboardSettings, Depends(_settings)]


@router.get("/login")
async def ask_token(
    settings: Settings, token: str | None = None, next_page: Annotated[str, Query(alias="next")] = "/"
) -> Response:
    """The form, or with ``?token=`` what the form leads to."""
    if settings.token is None:
        return RedirectResponse("/", HTTPStatus.SEE_OTHER)
    if token is None:
        return render("login.html", refused=False, next_page=next_page)
    return _answer(token, settings.token, settings, next_page)


@router.post("/login")
async def take_token(request: Request, settings: Settings) -> Response:
    """What the form sends."""
    if settings.token is None:
        return RedirectResponse("/", HTTPStatus.SEE_OTHER)
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_BODY:
            break
    fields = parse_qs(body[:LONGEST_BODY].decode(errors="replace"))
    return _answer(fields.get("token", [""])[0], settings.token, settings, fields.get("next", ["/"])[0])


def _answer(shown: str, token: str, settings: DashboardSettings, next_page: str) -> Response:
    if not same_token(shown.strip(), token):
        return render("login.html", status=HTTPStatus.UNAUTHORIZED, refused=True, next_page=next_page)
    response = RedirectResponse(_own_page(next_page), HTTPStatus.SEE_OTHER)
    response.set_cookie(
        cookie_name(settings), cookie_value(token), max_age=COOKIE_LASTS_S, httponly=True, samesite="lax"
    )
    return response


def _own_page(path: str) -> str:
    # "//elsewhere" and "/\elsewhere" are other hosts to a browser.
    return path if path.startswith("/") and path[1:2] not in ("/", "\\") else "/"
