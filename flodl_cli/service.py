"""A program that runs beside ours and does not outlive it."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flodl_cli import guard

GUARD_PATH = Path(guard.__file__)


class Service:
    """A program under a guard, which ends it when this process is gone. Owner: the thread that made it.

    Args:
        name: What people call it.
        command: The program and its arguments.
        environment: All of its environment.
        folder: Where it runs.
        log_path: Where what it prints goes; what was there is replaced.
        grace_s: How long it may take to end.
        outlived_by: Services that must not end before this one has, even where this process is killed.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        log_path: Path,
        grace_s: float,
        outlived_by: Sequence["Service"] = (),
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._grace_s = grace_s
        end_of_pipe, self._lifeline = os.pipe()
        # A guard that holds the lifeline of another keeps that one from its end.
        held = [other._lifeline for other in outlived_by]
        try:
            with log_path.open("wb") as log:
                self._guard = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(GUARD_PATH), str(grace_s), *command],
                    stdin=end_of_pipe,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=folder,
                    pass_fds=held,
                    start_new_session=True,
                )
        finally:
            os.close(end_of_pipe)

    def poll(self) -> int | None:
        """How it ended, or None while it runs."""
        return self._guard.poll()

    def stop(self) -> None:
        """End it and wait until it has. May be called twice."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        with suppress(subprocess.TimeoutExpired):
            self._guard.wait(self._grace_s + 5)
            return
        self._guard.kill()  # what it guards gets SIGTERM from the kernel
        self._guard.wait()

    def last_words(self) -> str:
        """The last line of its log, or nothing."""
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""
