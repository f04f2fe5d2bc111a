"""A flow's work while Prefect may end the flow: the signal is heard at once, and what was trained is not lost."""

import contextvars
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Generic, TypeVar

from prefect.exceptions import TerminationSignal

T = TypeVar("T")

LOOK_EVERY_S = 0.5
POLL_S = 0.05
MAX_SIGNALS = 8


class InterruptibleWork(Generic[T]):
    """Work on a thread of its own, so that a signal that raises in the main thread does not raise inside the work.

    Prefect asks for the end of a flow run with a :class:`TerminationSignal`, raised in the flow's main thread wherever
    that stands, and often asks twice within a moment. From the first one on the signal raises nothing any more. Until
    then Prefect's own handler must stay: it looks for that before it says that a flow is cancelled and not crashed.

    Owner: the main thread. Plain attributes and a sleep are all that it uses: locks, events and ``Thread.join`` break
    where an exception falls into them (an interrupted ``join`` takes the thread for dead). The work's thread is no
    daemon: if all else fails, the interpreter's exit waits for it.

    Args:
        work: What to do, with the caller's context. It gets ``is_stopping``, looks at that about ten times a second and
            comes to an orderly end once it is true.
        name: The thread's name.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], T], *, name: str) -> None:
        self._work = work
        self._may_begin = False
        self._is_stopping = False
        self._is_done = False
        self._look_s = 0.0
        self._termination: TerminationSignal | None = None
        self._result: list[T] = []
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._do,), name=name)

    def run(self, look: Callable[[], None]) -> T:
        """Do the work.

        Args:
            look: Called about twice a second, on the caller's thread, until the work is to end.

        Raises:
            TerminationSignal: It came meanwhile; the work has ended in good order since.
            Exception: Whatever the work or ``look`` raises.
        """
        self._thread.start()  # where a signal falls into this, the work does not begin
        try:
            self._outlast(look, MAX_SIGNALS)
        finally:
            self._may_begin = self._is_stopping = True
            while not self._is_done:
                time.sleep(POLL_S)
            self._thread.join()
        if self._error is not None:
            raise self._error
        if self._termination is not None:
            raise self._termination
        return self._result[0]

    def _outlast(self, look: Callable[[], None], num_signals: int) -> None:
        """Wait for the work's end, over so many signals: one that comes while another is noted is noted a level up."""
        try:
            self._may_begin = True
            if num_signals > 1:
                self._outlast(look, num_signals - 1)
            while not self._is_done:
                time.sleep(POLL_S)
                if not self._is_stopping and time.monotonic() >= self._look_s:
                    look()
                    self._look_s = time.monotonic() + LOOK_EVERY_S
        except TerminationSignal as termination:
            self._note(termination)

    def _note(self, termination: TerminationSignal) -> None:
        self._termination = self._termination or termination
        self._is_stopping = True
        signal.signal(signal.SIGTERM, _ignore)

    def _do(self) -> None:
        while not self._may_begin:
            if not threading.main_thread().is_alive():
                return
            time.sleep(POLL_S)
        try:
            self._result.append(self._work(lambda: self._is_stopping))
        except BaseException as error:  # noqa: BLE001  # a thread's top
            self._error = error
        finally:
            self._is_done = True


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    """The end is on its way."""
