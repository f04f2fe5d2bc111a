"""The real dashboard in a process of its own, that a test can stop and start again on the same port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-c", "from flodl_cli.main import main; raise SystemExit(main())", "dashboard"]
LIMIT_S = 30.0


class ServerProcess:
    """``flodl dashboard`` on a free port.

    Attributes:
        home: The ``$FLODL_HOME`` that it serves.
        url: Where it answers, once it has been started.
    """

    def __init__(self, home: Path, *arguments: str) -> None:
        self.home = home
        self._log = home.with_name("dashboard.log")
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self._port = "0"
        self.url = ""

    def start(self) -> None:
        environment = {**os.environ, "FLODL_HOME": str(self.home)}
        environment.pop("FLODL_DATABASE_URL", None)
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*COMMAND, "--port", self._port, *self._arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("Dashboard: http://"), self._log.read_text()
        self.url = line.removeprefix("Dashboard: ").strip()
        self._port = self.url.rsplit(":", 1)[1]

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> int:
        assert self._process is not None
        self._process.send_signal(signum)
        try:
            return self._process.wait(LIMIT_S)
        finally:
            self.close()

    def log(self) -> str:
        """What it said on standard error."""
        return self._log.read_text()

    def close(self) -> None:
        """End it, however it is; may be called twice."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
