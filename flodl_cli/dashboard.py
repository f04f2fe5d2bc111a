"""``flodl dashboard``: pages and REST interface over the store."""

import signal
import socket
from typing import Annotated

import typer

from dashboard.settings import DashboardSettings, SettingsError
from flodl_cli.failures import SIGNAL_BASE, CliError
from flodl_store.database import open_database

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
PORTS_TRIED = 100


def dashboard(
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a loopback one needs a token")
    ] = DEFAULT_HOST,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port; by default 8000, or the next one that is free")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="FLODL_DASHBOARD_TOKEN", help="What everybody must show who asks")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Name by which the dashboard may be called, besides localhost; repeatable")
    ] = None,
) -> int:
    """Show runs in a browser, live, until Ctrl-C."""
    from dashboard.server import serve  # the web framework is slow to import, and most commands need none of it

    _settings(host, DEFAULT_PORT, token, allow_host)  # before a port is taken
    open_database().close()  # what is wrong with it is said here, in one line
    with _listen(host, port) as listener:
        settings = _settings(host, listener.getsockname()[1], token, allow_host)
        try:
            serve(settings, listener, on_ready=lambda: print(f"Dashboard: {_url(settings)}", flush=True))
        except KeyboardInterrupt:  # the server raises it again once its streams have ended
            return SIGNAL_BASE + signal.SIGINT
    return 0


def _settings(host: str, port: int, token: str | None, allow_host: list[str] | None) -> DashboardSettings:
    try:
        return DashboardSettings(host=host, port=port, token=token, allowed_hosts=tuple(allow_host or ()))
    except SettingsError as error:
        raise CliError(str(error)) from error


def _listen(host: str, port: int | None) -> socket.socket:
    from dashboard.server import PortTakenError, bind

    wanted = [port] if port is not None else range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED)
    for candidate in wanted:
        try:
            return bind(host, candidate)
        except PortTakenError:
            continue
        except OSError as error:
            raise CliError(f"cannot listen on {host}, port {candidate}: {error.strerror or error}") from error
    if port is not None:
        raise CliError(f"port {port} is taken: give another one, or leave out --port for the next that is free")
    raise CliError(f"no port from {DEFAULT_PORT} to {DEFAULT_PORT + PORTS_TRIED - 1} is free: name one with --port")


def _url(settings: DashboardSettings) -> str:
    # 0.0.0.0 is where one listens, not an address that a browser opens.
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"http://{host}:{settings.port}"
