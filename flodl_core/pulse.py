"""Workers that hang: how they are noticed, and what can be said of where they are."""

import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from flodl_core.errors import WorkerFailure, WorkerTimeoutError

_PACKAGE = Path(__file__).parent
_LIBRARIES = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))


class Pulse:
    """Since when a worker has been at one thing. Written by its thread, read by the run's.

    It rests while the worker waits for others: then it is not the one that hangs.

    Args:
        now_s: A monotonic clock in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._now_s = now_s
        self.since_s: float | None = None
        """When it began with what it is at, or None while it waits."""

    def beat(self) -> None:
        """It goes on to the next thing."""
        self.since_s = self._now_s()

    def rest(self) -> None:
        """It waits for somebody else."""
        self.since_s = None


def late_ranks(pulses: Sequence[Pulse], *, limit_s: float, now_s: float) -> list[int]:
    """Ranks that have been at one thing for ``limit_s`` seconds or more, in order."""
    since_s = [pulse.since_s for pulse in pulses]
    return [rank for rank, start_s in enumerate(since_s) if start_s is not None and now_s - start_s >= limit_s]


def hang_of(rank: int, thread: threading.Thread, *, limit_s: float) -> WorkerFailure:
    """What is to be said of a worker that hangs: where it is, with its thread's whole stack."""
    frame = sys._current_frames().get(thread.ident or 0)
    place = "its thread has ended" if frame is None else f"it is at {_place(frame)}"
    error = WorkerTimeoutError(f"not done with a batch after {limit_s:g} s (worker_timeout_s): {place}")
    return WorkerFailure(rank=rank, error=error, traceback="" if frame is None else _stack(frame))


def _stack(frame: FrameType) -> str:
    return "Stack of the worker that hangs (most recent call last):\n" + "".join(traceback.format_stack(frame))


def _place(frame: FrameType) -> str:
    """The innermost call that is neither flodl's nor a library's, else the innermost of all."""
    calls = traceback.extract_stack(frame)
    own = [call for call in calls if not _is_of_others(Path(call.filename))]
    call = (own or list(calls))[-1]
    return f"{call.filename}:{call.lineno} in {call.name}"


def _is_of_others(path: Path) -> bool:
    return path.is_relative_to(_PACKAGE) or any(path.is_relative_to(folder) for folder in _LIBRARIES)
