"""Stands before every route: refuses what ``access`` does not allow, and adds the security headers to each answer."""

from http import HTTPStatus
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboard.access import host_allowed, same_origin, token_shown
from dashboard.headers import SECURITY_HEADERS
from dashboard.problems import MACHINE_PATHS, answer_problem
from dashboard.settings import DashboardSettings

# What the page that asks for the token needs, and what a supervisor asks; none of it says anything of a run.
OPEN_PATHS = ("/login", "/static/", "/favicon.ico", "/healthz")


class Guard:
    """ASGI middleware; a plain one, since Starlette's own would sit between a stream and its client's absence."""

    def __init__(self, app: ASGIApp, settings: DashboardSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope["method"], scope["path"], Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, method: str, path: str, headers: Headers) -> Response | None:
        if not host_allowed(headers.get("host", ""), self._settings):
            detail = "This dashboard is not known by that name: use its address, or start it with --allow-host NAME"
            return answer_problem(path, HTTPStatus.MISDIRECTED_REQUEST, detail)
        if not same_origin(method, headers):
            return answer_problem(path, HTTPStatus.FORBIDDEN, "Only a page of this dashboard may ask for that")
        if path.startswith(OPEN_PATHS) or token_shown(headers, self._settings):
            return None
        if path.startswith(MACHINE_PATHS):
            detail = "This dashboard asks for its token: Authorization: Bearer TOKEN"
            return answer_problem(path, HTTPStatus.UNAUTHORIZED, detail, headers={"www-authenticate": "Bearer"})
        return RedirectResponse(f"/login?next={quote(path)}", HTTPStatus.SEE_OTHER)
