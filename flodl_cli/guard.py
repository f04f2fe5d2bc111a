"""Runs a program and ends it once whoever started this one is gone, however that came about.

``python -I -S guard.py GRACE_S PROGRAM ARGUMENT...``: standard input is a pipe that the owner holds open. At its end
the program gets SIGTERM, and ``GRACE_S`` seconds later whatever is left of it SIGKILL; the same where the program ended
by itself and left processes behind. Started as a file, in a session of its own: it needs the standard library alone,
and a Ctrl-C on the owner's terminal does not reach it.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from types import FrameType

POLL_S = 0.05
_PR_SET_PDEATHSIG = 1


class Guarded:
    """The program and all that it started, which is one process group."""

    def __init__(self, command: list[str], *, grace_s: float) -> None:
        self._grace_s = grace_s
        libc = ctypes.CDLL(None)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            process_group=0,
            # so that it goes even where this process is killed
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        self._ended = threading.Event()

    def run(self) -> int:
        """Wait for the program's end and clean up after it; returns its exit code as a shell gives it."""
        code = self._process.wait()
        self._ended.set()
        if self._signal_group(signal.SIGTERM):
            self._await_group()
            self._signal_group(signal.SIGKILL)
        return code if code >= 0 else 128 - code

    def end(self) -> None:
        """SIGTERM to the program alone, which then ends what it started; SIGKILL to all once the grace is over."""
        self._process.terminate()
        if not self._ended.wait(self._grace_s):
            self._signal_group(signal.SIGKILL)

    def _await_group(self) -> None:
        limit_s = time.monotonic() + self._grace_s
        while time.monotonic() < limit_s and self._signal_group(0):
            time.sleep(POLL_S)

    def _signal_group(self, signum: int) -> bool:
        """Whether there was anybody left to get the signal."""
        try:
            os.killpg(self._process.pid, signum)
        except ProcessLookupError:
            return False
        return True


def main(arguments: list[str]) -> int:
    """Guard the program that ``arguments`` name."""
    guarded = Guarded(arguments[1:], grace_s=float(arguments[0]))

    def end(_signum: int, _frame: FrameType | None) -> None:
        threading.Thread(target=guarded.end, daemon=True).start()

    def watch() -> None:
        while os.read(0, 1):
            pass
        guarded.end()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, end)
    threading.Thread(target=watch, daemon=True).start()
    return guarded.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
