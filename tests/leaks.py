"""What a test left behind: threads, child processes and open file descriptors, compared before and after.

The suite's rule is that a test cleans up after itself. Nothing here is imported by the product.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

# Threads that were told to stop may still be on their way out: this is for all of them together.
JOIN_LIMIT_S = 2.0

# Opened once for the whole process by libraries, never closed, and no test's doing.
PROCESS_WIDE_FILES = (
    "/dev/random",
    "/dev/urandom",
    "/dev/nvidia",  # the CUDA driver
    "/memfd:wasm-memory-image",  # Graphviz, compiled once
)

# Helpers that multiprocessing starts once and ends with the interpreter.
PROCESS_WIDE_CHILDREN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What the process held at one moment."""

    threads: frozenset[threading.Thread]
    children: frozenset[psutil.Process]  # compared by pid and start time, so that a reused pid is another process
    files: frozenset[tuple[int, str]]  # (descriptor, what it is open on)


def take_inventory() -> Inventory:
    """Look at this process now."""
    return Inventory(
        threads=frozenset(threading.enumerate()),
        children=frozenset(_children()),
        files=frozenset(_open_files()),
    )


def find_leaks(before: Inventory) -> list[str]:
    """Name everything that is held now and was not held before.

    Threads get ``JOIN_LIMIT_S`` to end. Objects that only a reference cycle keeps alive (an exception that a test
    caught, say) are collected first: what is then gone was not left open by anybody.

    Args:
        before: The inventory taken before the test.

    Returns:
        One line for each thread, child process and file descriptor left behind.
    """
    leaks = _lasting_threads(before.threads)
    now = take_inventory()
    if now.files - before.files or now.children - before.children:
        gc.collect()
        now = take_inventory()
    leaks += [_describe(child) for child in sorted(now.children - before.children, key=lambda child: child.pid)]
    leaks += [f"file descriptor {fd} -> {target}" for fd, target in sorted(now.files - before.files)]
    return leaks


def end_new_children(before: Inventory) -> None:
    """Kill the child processes that a test left, so that the tests after it start clean."""
    left = list(take_inventory().children - before.children)
    for child in left:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(left, timeout=JOIN_LIMIT_S)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread, a child process or an open file descriptor behind."""
    before = take_inventory()
    yield
    leaks = find_leaks(before)
    if leaks:
        end_new_children(before)
        pytest.fail("the test left behind:\n  " + "\n  ".join(leaks), pytrace=False)


def _lasting_threads(before: frozenset[threading.Thread]) -> list[str]:
    limit = time.monotonic() + JOIN_LIMIT_S
    lasting = []
    for thread in set(threading.enumerate()) - before:
        # A "dummy" stands for a native thread that once called Python: torch's autograd threads, which last as
        # long as the process and cannot be joined.
        if isinstance(thread, threading._DummyThread):
            continue
        thread.join(max(0.0, limit - time.monotonic()))
        if thread.is_alive():
            kind = "daemon thread" if thread.daemon else "thread"
            lasting.append(f"{kind} {thread.name!r} (ident {thread.ident})")
    return sorted(lasting)


def _children() -> Iterator[psutil.Process]:
    for child in psutil.Process().children(recursive=True):
        command = _command(child)
        if not any(known in command for known in PROCESS_WIDE_CHILDREN):
            yield child


def _open_files() -> Iterator[tuple[int, str]]:
    for link in Path("/proc/self/fd").iterdir():
        # The descriptor that lists the folder is in the list and is closed by now.
        with suppress(FileNotFoundError):
            target = str(link.readlink())
            if not target.startswith(PROCESS_WIDE_FILES):
                yield int(link.name), target


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it ended, or is a zombie, which has no command line any more
        return ""


def _describe(child: psutil.Process) -> str:
    try:
        ended = child.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        ended = True
    if ended:
        return f"child process {child.pid}, which ended but was not waited for"
    return f"child process {child.pid}: {_command(child)}"
