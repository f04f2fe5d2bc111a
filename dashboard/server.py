"""Serving the dashboard from a program: a socket that is bound before, and an end that open streams do not hold up."""

import errno
import socket
from collections.abc import Callable

import uvicorn

from dashboard.app import create_app
from dashboard.settings import DashboardSettings

GRACE_S = 2
BACKLOG = 2048


class PortTakenError(OSError):
    """Somebody else listens on the address already."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on the address; port 0 takes a free one.

    Raises:
        PortTakenError: Somebody else does already.
        OSError: The address is none of this machine's, or may not be listened on.
    """
    family, _, _, _, address = socket.getaddrinfo(
        host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not to wait a minute for one's own last life
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(error.errno, f"port {port} is taken") from error
        raise
    return listener


def serve(settings: DashboardSettings, listener: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; open streams end within ``GRACE_S`` then. Closes ``listener``.

    Args:
        settings: How the dashboard is reached; ``settings.port`` is the listener's.
        listener: From ``bind``.
        on_ready: Called once requests are answered.
    """
    _Server(settings, on_ready).run([listener])


class _Server(uvicorn.Server):
    def __init__(self, settings: DashboardSettings, on_ready: Callable[[], None]) -> None:
        self._app = create_app(settings)
        self._on_ready = on_ready
        super().__init__(
            uvicorn.Config(
                self._app,
                log_config=None,
                access_log=False,  # a line a request, with the token of /login in it
                server_header=False,
                proxy_headers=False,  # nobody may say that he comes from elsewhere
                ws="none",
                timeout_graceful_shutdown=GRACE_S,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.feeds.close()
        await super().shutdown(sockets)
