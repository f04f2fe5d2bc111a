"""A real ``flodl up`` for the tests: started once, in a home and a folder of its own, on free ports."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.data_paths import REPOSITORY

START_S = 150.0
STOP_S = 90.0
PROGRAM = [sys.executable, "-c", "import sys; from flodl_cli.main import main; sys.exit(main())"]


OWN_RECIPE = """
from dataclasses import replace
from flows.recipes.digits import recipe as digits
recipe = replace(digits, name="own", description="digits, from a module of the user's")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A ``flodl`` that runs, and what it prints."""

    process: subprocess.Popen[str]
    lines: list[str]
    errors: list[str]
    printed: threading.Condition

    def line(self, beginning: str) -> str:
        """What follows ``beginning`` on the first line of standard output that begins so, once it is there."""

        def found() -> str | None:
            return next((line for line in self.lines if line.startswith(beginning)), None)

        with self.printed:
            is_there = self.printed.wait_for(lambda: found() or self.process.poll() is not None, START_S)
        line = found()
        assert is_there, f"no line {beginning!r} within {START_S:g} s; errors: {self.errors}"
        assert line is not None, f"no line {beginning!r} but {self.lines}; errors: {self.errors}"
        return line.removeprefix(beginning).strip()

    def wait(self, limit_s: float = STOP_S) -> int:
        """Its exit code once it has ended."""
        return self.process.wait(limit_s)


@contextlib.contextmanager
def command(*arguments: str, folder: Path, **environment: str) -> Iterator[Command]:
    """Run ``flodl`` for the block; it is killed where it still runs at the end."""
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=folder,
        env=_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    running = Command(process=process, lines=[], errors=[], printed=threading.Condition())
    readers = [
        threading.Thread(target=_read, args=(running, process.stdout, running.lines)),
        threading.Thread(target=_read, args=(running, process.stderr, running.errors)),
    ]
    for reader in readers:
        reader.start()
    try:
        yield running
    finally:
        process.kill()
        process.wait()
        for reader in readers:
            reader.join()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServices:
    """A ``flodl up`` all of whose services answer.

    Attributes:
        home: Its ``$FLODL_HOME``.
        started_in: The folder where it was started. It holds a module ``own_recipe``, and a package ``flows`` that must
            not be imported.
        dashboard: The dashboard's address.
        prefect_api: Of Prefect's API.
        pid: Its process.
    """

    home: Path
    started_in: Path
    dashboard: str
    prefect_api: str
    pid: int

    def flow_processes(self) -> list[psutil.Process]:
        """Processes in which flows run now."""
        found = []
        for process in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any("spawn_main" in word for word in process.cmdline()):
                    found.append(process)
        return found

    def prefect(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Prefect's own command, as a person in another shell does."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "prefect", *arguments],
            env=_environment(PREFECT_API_URL=self.prefect_api, PREFECT_HOME=str(self.home / "other-shell")),
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )


@contextlib.contextmanager
def running_services(folder: Path) -> Iterator[RunningServices]:
    """``flodl up`` for the block; at the end it is stopped and has left nothing behind."""
    home, started_in = folder / "home", folder / "started in"
    (started_in / "flows").mkdir(parents=True)
    (started_in / "flows" / "__init__.py").write_text("raise RuntimeError('this is not ours')\n")
    (started_in / "own_recipe.py").write_text(OWN_RECIPE)
    ports = ["--port", str(free_port()), "--prefect-port", str(free_port())]
    with command("up", *ports, folder=started_in, FLODL_HOME=str(home)) as up:
        dashboard, api = up.line("Dashboard: "), up.line("Prefect API: ")
        assert up.line("export PREFECT_API_URL=") == api
        descendants = psutil.Process(up.process.pid).children(recursive=True)
        yield RunningServices(
            home=home, started_in=started_in, dashboard=dashboard, prefect_api=api, pid=up.process.pid
        )
        up.process.send_signal(signal.SIGINT)
        assert up.wait() == 128 + signal.SIGINT, up.errors
    assert gone(descendants)


def copy_prefect_database(source_home: Path, home: Path) -> None:
    """Spare a home the twenty seconds that Prefect takes to make its tables."""
    (home / "prefect").mkdir(parents=True)
    with (
        contextlib.closing(sqlite3.connect(source_home / "prefect" / "prefect.db")) as source,
        contextlib.closing(sqlite3.connect(home / "prefect" / "prefect.db")) as target,
    ):
        source.backup(target)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def gone(processes: list[psutil.Process], limit_s: float = STOP_S) -> bool:
    """Whether all of them end in time; none is our own child."""
    _, alive = psutil.wait_procs(processes, timeout=limit_s)
    return alive == []


def until(found: Callable[[], bool], what: str, limit_s: float = START_S) -> None:
    """Wait for what another process does, which tells us in no other way."""
    limit = time.monotonic() + limit_s
    while not found():
        assert time.monotonic() < limit, f"{what} did not come to pass within {limit_s:g} s"
        threading.Event().wait(0.1)


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "FLODL_"))}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", **more}


def _read(running: Command, stream: object, lines: list[str]) -> None:
    for line in stream:  # type: ignore[attr-defined]  # a text stream
        with running.printed:
            lines.append(line.rstrip("\n"))
            running.printed.notify_all()
