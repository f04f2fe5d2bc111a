"""Ctrl-C and SIGTERM while a run goes on."""

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

from flodl_cli.failures import SIGNAL_BASE, Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = "\x1b[?25h"


class StopSignals:
    """Takes SIGINT and SIGTERM over while it is entered; only the main thread can.

    Until ``defer`` is called, a signal raises :class:`Interrupted` where the program stands. After it the first one is
    kept in ``requested`` for the owner to look at, the second says that it was heard, the third ends the process.

    Owner: the main thread. The handler only sets a field and writes to the descriptor: it may come while any lock is
    held, standard error's among them.
    """

    def __init__(self) -> None:
        self._requested: int | None = None
        self._num_received = 0
        self._deferred = False
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> int | None:
        """Number of the first signal since ``defer``, or None."""
        return self._requested

    def is_requested(self) -> bool:
        """Whether a stop was asked for."""
        return self._requested is not None

    def defer(self) -> None:
        """From now on, keep signals instead of raising."""
        self._deferred = True

    def __enter__(self) -> Self:
        self._previous = {signum: signal.signal(signum, self._on_signal) for signum in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if not self._deferred:
            raise Interrupted(signum)
        self._num_received += 1
        if self._num_received == 1:
            self._requested = signum
            _say("stopping; what has been trained is saved")
        elif self._num_received == 2:
            _say("already stopping; once more ends at once, without saving")
        else:
            _say(f"{SHOW_CURSOR * os.isatty(2)}ended without saving")
            os._exit(SIGNAL_BASE + signum)


def _say(text: str) -> None:
    # On a terminal the bar's next drawing wipes the line that the cursor is in and the one above it.
    end = "\n\n" if os.isatty(2) else "\n"
    try:
        os.write(2, f"\nflodl: {text}{end}".encode())
    except OSError:  # standard error is closed, which must not keep the run from stopping
        return
