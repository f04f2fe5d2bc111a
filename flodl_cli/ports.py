"""Ports on this machine's loopback address."""

import socket

from flodl_cli.failures import CliError

LOOPBACK = "127.0.0.1"
NUM_TRIED = 50


def choose_port(default: int, *, asked: int | None, what: str) -> int:
    """The port that was asked for, else the first free one from ``default`` on.

    Args:
        default: Where to begin.
        asked: What the caller named, or None.
        what: Who needs it, and by which option it is named, for the message.

    Raises:
        CliError: The port asked for is taken, or none is free.
    """
    if asked is not None:
        if not is_free(asked):
            raise CliError(f"port {asked} is taken: name another one for {what}")
        return asked
    for port in range(default, default + NUM_TRIED):
        if is_free(port):
            return port
    raise CliError(f"ports {default} to {default + NUM_TRIED - 1} are taken: name another one for {what}")


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port just left is free
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
