"""Programs that run beside ours end with it, whatever happens to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from flodl_cli.service import Service

LIMIT_S = 60.0
# A program that starts another, tells both process ids, and writes down how it was ended.
PROGRAM = """
import os, signal, subprocess, sys, threading
other = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
told = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())
print(os.getpid(), other.pid, flush=True)
while not told.wait(0.05):
    pass
if "leave" not in sys.argv:
    other.kill()
    other.wait()
if "hang" in sys.argv:
    threading.Event().wait()
print("ended in order", flush=True)
"""
OWNER = """
import sys, os, threading
from pathlib import Path
from flodl_cli.service import Service
folder = Path(sys.argv[1])
def start(name, *others):
    return Service(name, [sys.executable, "-c", Path(sys.argv[2]).read_text()], environment=dict(os.environ),
        folder=folder, log_path=folder / f"{name}.log", grace_s=20, outlived_by=others)
first = start("first")
second = start("second", first)
print("started", flush=True)
threading.Event().wait()
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Service]:
    def make(*arguments: str, grace_s: float = 20.0) -> Service:
        return Service(
            "test",
            [sys.executable, "-c", PROGRAM, *arguments],
            environment=dict(os.environ),
            folder=tmp_path,
            log_path=tmp_path / "test.log",
            grace_s=grace_s,
        )

    return make


def processes_of(log: Path) -> list[psutil.Process]:
    """The processes that the program in the log named, once it has."""
    text = ""
    while not text.endswith("\n"):
        text = log.read_text() if log.exists() else ""
    return [psutil.Process(int(word)) for word in text.splitlines()[0].split()]


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=LIMIT_S)
    assert alive == []


def test_stopping_ends_the_program_and_what_it_started(start: Callable[..., Service]) -> None:
    service = start()
    processes = processes_of(service.log_path)
    assert service.poll() is None
    service.stop()
    assert_gone(processes)
    assert service.poll() == 0
    assert service.last_words() == "ended in order"
    service.stop()


def test_what_a_program_leaves_behind_is_ended(start: Callable[..., Service]) -> None:
    service = start("leave")
    processes = processes_of(service.log_path)
    service.stop()
    assert_gone(processes)


def test_a_program_that_does_not_end_is_killed(start: Callable[..., Service]) -> None:
    service = start("hang", grace_s=0.2)
    processes = processes_of(service.log_path)
    service.stop()
    assert_gone(processes)
    assert service.poll() == 128 + signal.SIGKILL


def test_a_guard_that_is_killed_takes_its_program_along(start: Callable[..., Service]) -> None:
    service = start()
    processes = processes_of(service.log_path)
    processes[0].parent().kill()  # type: ignore[union-attr]  # it runs, so it has one
    assert_gone(processes)
    service.stop()


def test_an_owner_that_is_killed_ends_its_services_in_order(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), str(tmp_path / "program.py")], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        first, second = processes_of(tmp_path / "first.log"), processes_of(tmp_path / "second.log")
        owner.kill()
    assert_gone([*first, *second])
    ends = [(tmp_path / f"{name}.log").stat().st_mtime_ns for name in ("second", "first")]
    assert ends == sorted(ends)
    assert (tmp_path / "first.log").read_text().endswith("ended in order\n")


def test_a_service_is_out_of_reach_of_the_terminals_signals(start: Callable[..., Service]) -> None:
    service = start()
    processes = processes_of(service.log_path)
    assert os.getpgid(processes[0].pid) != os.getpgid(0)
    assert os.getsid(processes[0].pid) != os.getsid(0)
    service.stop()
