"""Work that goes on in good order while signals raise in the main thread."""

from __future__ import annotations

import contextvars
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from prefect.exceptions import TerminationSignal

from flows.interruptible import InterruptibleWork

LIMIT_S = 60.0
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")


def raise_termination(signum: int, _frame: FrameType | None) -> None:
    raise TerminationSignal(signal=signum)


@pytest.fixture(autouse=True)
def as_in_prefect() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, raise_termination)
    yield
    signal.signal(signal.SIGTERM, before)


def nothing() -> None:
    pass


def wait_for_stop(is_stopping: Callable[[], bool]) -> None:
    looked = threading.Event()
    while not is_stopping():
        looked.wait(0.001)


def test_result_comes_back_from_a_thread_with_the_callers_context() -> None:
    variable.set("here")
    work = InterruptibleWork(lambda _: (variable.get(), threading.current_thread().name), name="the-work")
    assert work.run(nothing) == ("here", "the-work")


def test_errors_come_back() -> None:
    def fail(_is_stopping: Callable[[], bool]) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        InterruptibleWork(fail, name="the-work").run(nothing)


def test_an_error_of_the_look_stops_the_work() -> None:
    ended = threading.Event()

    def work(is_stopping: Callable[[], bool]) -> None:
        wait_for_stop(is_stopping)
        ended.set()

    def look() -> None:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        InterruptibleWork(work, name="the-work").run(look)
    assert ended.is_set()


@pytest.mark.parametrize("num_signals", [1, 2, 100])
def test_signals_stop_the_work_which_ends_in_good_order(num_signals: int) -> None:
    for _ in range(20):
        saved = threading.Event()

        def work(is_stopping: Callable[[], bool]) -> None:
            for _ in range(num_signals):
                os.kill(os.getpid(), signal.SIGTERM)
            wait_for_stop(is_stopping)
            for _ in range(num_signals):
                os.kill(os.getpid(), signal.SIGTERM)
            saved.set()  # noqa: B023  # called before the loop goes on

        signal.signal(signal.SIGTERM, raise_termination)
        with pytest.raises(TerminationSignal):
            InterruptibleWork(work, name="the-work").run(nothing)
        assert saved.is_set()


def test_a_signal_inside_the_look_stops_the_work_too() -> None:
    with pytest.raises(TerminationSignal):
        InterruptibleWork(wait_for_stop, name="the-work").run(lambda: os.kill(os.getpid(), signal.SIGTERM))
