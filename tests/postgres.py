"""A PostgreSQL server of the tests' own: the system's programs, in a temporary folder, on a free port."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

USERS = ("postgres", "nobody")
"""Whom the server may run as where the tests run as root, which it refuses."""
TEMPLATE = "flodl_template"
_numbers = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """A running server.

    Attributes:
        port: On 127.0.0.1; user ``flodl``, no password.
    """

    port: int

    def url(self, name: str) -> str:
        """What ``FLODL_DATABASE_URL`` would say for the database ``name``."""
        return f"postgresql://flodl@127.0.0.1:{self.port}/{name}"

    def execute(self, statement: str) -> None:
        """Do something as the server's owner, outside of any transaction."""
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    @contextmanager
    def database(self, *, template: str = "template0") -> Iterator[str]:
        """The name of a new database, which is dropped when the block ends."""
        name = f"flodl_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield name
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    @contextmanager
    def closed(self, name: str) -> Iterator[None]:
        """While the block runs, the database ends every connection and takes no new one."""
        self.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        self.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'")
        try:
            yield
        finally:
            self.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server with a database ``TEMPLATE`` that has flodl's tables; skips where its programs are not installed."""
    from flodl_store.database import connect_database  # only here: most of the suite needs no database
    from flodl_store.schema import upgrade

    folder = programs()
    if folder is None:
        pytest.skip("PostgreSQL's server programs (initdb, pg_ctl) are not installed")
    with running_server(folder) as server:
        server.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0")
        with connect_database(server.url(TEMPLATE)) as db:
            upgrade(db)
        yield server


def programs() -> Path | None:
    """Folder of the newest server programs that are installed, or None."""
    found = shutil.which("pg_ctl")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@contextmanager
def running_server(folder: Path) -> Iterator[PostgresServer]:
    """A server, started with the programs in ``folder``, ended and removed when the block ends."""
    home = Path(tempfile.mkdtemp(prefix="flodl-postgres-"))
    as_user = _owner_of(home)
    data = home / "data"
    try:
        port = _free_port()
        _run([*as_user, folder / "initdb", "-D", data, "-U", "flodl", "-A", "trust", "-E", "UTF8", "--no-sync"], home)
        settings = f"-p {port} -h 127.0.0.1 -k '' -c fsync=off -c max_connections=50"
        _run([*as_user, folder / "pg_ctl", "-D", data, "-l", home / "log", "-o", settings, "-w", "start"], home)
        try:
            yield PostgresServer(port=port)
        finally:
            _run([*as_user, folder / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"], home)
    finally:
        shutil.rmtree(home)


def _owner_of(home: Path) -> list[str]:
    """The command under which the server may run, with ``home`` given to its user."""
    if os.geteuid() != 0:
        return []
    user = next(entry for entry in map(_user, USERS) if entry is not None)
    os.chown(home, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]


def _user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _run(command: list[str | Path], folder: Path) -> None:
    # The server keeps what it inherits: a pipe to read its output from would stay open for as long as it runs.
    with (folder / "commands.log").open("a") as log:
        result = subprocess.run(command, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{command} failed:\n{(folder / 'commands.log').read_text()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
