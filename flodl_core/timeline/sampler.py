"""The thread that samples, and the pulse that it keeps."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)


class Pulse(Protocol):
    """When to sample."""

    def wait(self) -> bool:
        """Until the next beat; returns False once it has been stopped."""

    def stop(self) -> None:
        """Wake whoever waits, for good. May be called twice."""


class SteadyPulse:
    """Beats every ``interval_s``, counted from the start so that it does not drift; beats that were missed are skipped.

    Args:
        interval_s: Seconds from beat to beat.
        clock: Seconds, never going back.
    """

    def __init__(self, interval_s: float, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._stopped = threading.Event()
        self._start_s = clock()

    def wait(self) -> bool:
        """See ``Pulse``."""
        return not self._stopped.wait(self.left_s)

    @property
    def left_s(self) -> float:
        """Seconds to the next beat."""
        return self._interval_s - (self._clock() - self._start_s) % self._interval_s

    def stop(self) -> None:
        """See ``Pulse``."""
        self._stopped.set()


class Sampler:
    """``ddp-timeline``: samples at once, at each beat, and once more when it is stopped.

    Args:
        sample: Takes one sample; called in the thread only.
        pulse: When.
        close: Called in the thread as its last act.
    """

    def __init__(self, sample: Callable[[], None], *, pulse: Pulse, close: Callable[[], None]) -> None:
        self._sample = sample
        self._pulse = pulse
        self._close = close
        self._thread = threading.Thread(target=self._work, name="ddp-timeline")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it. May be called twice."""
        self._pulse.stop()
        self._thread.join()

    def _work(self) -> None:
        try:
            self._sample()
            while self._pulse.wait():
                self._sample()
            self._sample()
        except Exception:  # a thread's top: training goes on without samples
            log.exception("the timeline's sampling has ended")
        finally:
            self._close()
