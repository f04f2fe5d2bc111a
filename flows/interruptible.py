"""A flow's work while Prefect may end the flow: the signal is heard at once, and what was trained is not lost."""

import contextvars
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from prefect.exceptions import TerminationSignal

T = TypeVar("T")

LOOK_EVERY_S = 0.5
STOP_S = 60.0
"""How long work that was told to stop is waited for; Prefect kills the process after 30 s."""


class InterruptibleWork(Generic[T]):
    """Work on a thread of its own, so that a signal that raises in the main thread does not raise inside the work.

    Prefect asks for the end of a flow run with a :class:`TerminationSignal`, raised in the flow's main thread wherever
    that stands. Owner: the thread that calls ``run``, which must be the one that gets signals.

    Args:
        work: What to do, with the caller's context. It gets ``is_stopping``, looks at that about ten times a second and
            comes to an orderly end once it is true.
        name: The thread's name.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], T], *, name: str) -> None:
        self._work = work
        self._stop = threading.Event()
        self._termination: TerminationSignal | None = None
        self._result: list[T] = []
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._do,), name=name, daemon=True)

    def run(self, look: Callable[[], None]) -> T:
        """Do the work.

        Args:
            look: Called about twice a second, on the caller's thread, while the work goes on.

        Raises:
            TerminationSignal: It came meanwhile; the work has ended in good order since.
            Exception: Whatever the work or ``look`` raises.
        """
        self._thread.start()
        try:
            while self._thread.is_alive():
                self._wait(look)
        finally:
            self._stop.set()
            self._thread.join(STOP_S)
        if self._error is not None:
            raise self._error
        if self._termination is not None:
            raise self._termination
        return self._result[0]

    def _wait(self, look: Callable[[], None]) -> None:
        try:
            while self._thread.is_alive():
                self._thread.join(LOOK_EVERY_S)
                look()
        except TerminationSignal as signal:
            self._termination = self._termination or signal
            self._stop.set()

    def _do(self) -> None:
        try:
            self._result.append(self._work(self._stop.is_set))
        except BaseException as error:  # noqa: BLE001  # a thread's top
            self._error = error
