"""One thread that does what it is given, in order: averaging beside the coordinator, and the user's callbacks."""

import threading
from collections.abc import Callable

from flodl_core.channel import ThreadChannel


class BackgroundThread:
    """Runs tasks first in, first out. Unlike a pool's, its thread may outlive the main thread while a run winds up.

    Args:
        name: The thread's name.
        on_error: Called in the thread with what a task raised.
    """

    def __init__(self, name: str, *, on_error: Callable[[BaseException], None]) -> None:
        self._tasks: ThreadChannel[Callable[[], None]] = ThreadChannel()
        self._on_error = on_error
        self._thread = threading.Thread(target=self._work, name=name)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, task: Callable[[], None]) -> None:
        """Do ``task`` after those submitted before."""
        self._tasks.send(task)

    def close(self) -> None:
        """Finish what was submitted and end the thread. May be called twice."""
        self._tasks.close()
        self._thread.join()

    def _work(self) -> None:
        while (task := self._tasks.receive()) is not None:
            try:
                task()
            except BaseException as error:  # noqa: BLE001  # a thread's top
                self._on_error(error)
