"""How messages travel between a worker and the coordinator: first in, first out, from thread to thread."""

import threading
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from flodl_core.errors import ChannelClosed

T = TypeVar("T")
T_in = TypeVar("T_in", contravariant=True)


class Sender(Protocol[T_in]):
    """The end of a channel that one sends into."""

    def send(self, message: T_in) -> None:
        """Hand over a message without blocking.

        Raises:
            ChannelClosed: The receiver has ended.
        """


class Cuttable(Generic[T_in]):
    """A sender that another thread can cut off: nothing is sent after ``cut`` has returned.

    Args:
        channel: Where messages go until then.
    """

    def __init__(self, channel: Sender[T_in]) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._is_cut = False

    def send(self, message: T_in) -> None:
        """Hand over a message without blocking.

        Raises:
            ChannelClosed: The receiver has ended, or no longer listens to this sender.
        """
        with self._lock:
            if self._is_cut:
                raise ChannelClosed(f"cannot send {type(message).__name__}: the run goes on without this worker")
            self._channel.send(message)

    def cut(self) -> None:
        """Refuse further messages. May be called twice."""
        with self._lock:
            self._is_cut = True


class ThreadChannel(Generic[T]):
    """A channel within one process. Any thread may send; one thread, its owner, receives."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[T | None] = SimpleQueue()  # None wakes the receiver when the channel is closed
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called; what was sent before can still be received."""
        return self._closed

    def send(self, message: T) -> None:
        """Hand over a message without blocking.

        Raises:
            ChannelClosed: The channel was closed.
        """
        if self._closed:
            raise ChannelClosed(f"cannot send {type(message).__name__}: the channel is closed")
        self._queue.put(message)

    def receive(self, timeout_s: float | None = None) -> T | None:
        """Wait for the next message.

        Args:
            timeout_s: Longest wait in seconds; None waits until a message comes or the channel is closed.

        Returns:
            The message, or None on time-out and when the channel is closed and empty.
        """
        try:
            return self._queue.get(timeout=timeout_s)
        except Empty:
            return None

    def is_empty(self) -> bool:
        """Whether ``receive`` would have to wait."""
        return self._queue.empty()

    def drain(self) -> list[T]:
        """Everything that has arrived, without waiting."""
        messages: list[T] = []
        while not self._queue.empty():
            message = self._queue.get_nowait()
            if message is not None:
                messages.append(message)
        return messages

    def close(self) -> None:
        """Refuse further messages and wake the receiver. May be called twice."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
