"""One thread that does what it is given, in order: averaging beside the coordinator, and the user's callbacks."""

import threading
from collections.abc import Callable

from flodl_core.channel import ThreadChannel


class BackgroundThread:
    """Runs tasks first in, first out. Unlike a pool's, its thread may outlive the main thread while a run winds up.

    Args:
        name: The thread's name.
        on_error: Called in the thread with what a task raised.
        daemon: Whether the interpreter may exit while a task runs: for tasks that may never return.
    """

    def __init__(self, name: str, *, on_error: Callable[[BaseException], None], daemon: bool = False) -> None:
        self._tasks: ThreadChannel[Callable[[], None]] = ThreadChannel()
        self._on_error = on_error
        self._thread = threading.Thread(target=self._work, name=name, daemon=daemon)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def submit(self, task: Callable[[], None]) -> None:
        """Do ``task`` after those submitted before."""
        self._tasks.send(task)

    def close(self, timeout_s: float | None = None) -> bool:
        """Finish what was submitted and end the thread. May be called again.

        Args:
            timeout_s: Longest wait in seconds; None waits as long as it takes.

        Returns:
            Whether the thread has ended.
        """
        self._tasks.close()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (task := self._tasks.receive()) is not None:
            try:
                task()
            except BaseException as error:  # noqa: BLE001  # a thread's top
                self._on_error(error)
