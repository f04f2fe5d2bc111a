from __future__ import annotations

import threading
from functools import partial

import pytest

from flodl_core.background import BackgroundThread
from flodl_core.errors import ChannelClosed

LIMIT_S = 30.0


def _refuse(error: BaseException) -> None:
    raise AssertionError(f"unexpected: {error!r}")


def test_tasks_run_in_order_on_the_thread_of_that_name() -> None:
    background = BackgroundThread("ddp-test", on_error=_refuse)
    done: list[tuple[int, str]] = []

    def note(number: int) -> None:
        done.append((number, threading.current_thread().name))

    background.start()
    for number in range(50):
        background.submit(partial(note, number))
    background.close()
    assert done == [(number, "ddp-test") for number in range(50)]


def test_closing_finishes_what_was_submitted_and_refuses_more() -> None:
    background = BackgroundThread("ddp-test", on_error=_refuse)
    may_go, done = threading.Event(), threading.Event()
    background.start()
    background.submit(lambda: _expect(may_go.wait(LIMIT_S)))
    background.submit(done.set)
    closer = threading.Thread(target=background.close)
    closer.start()
    assert not done.is_set()
    may_go.set()
    closer.join(LIMIT_S)
    assert done.is_set()
    with pytest.raises(ChannelClosed):
        background.submit(done.clear)
    background.close()


def _expect(value: bool) -> None:
    assert value


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_task_raises_is_told_and_the_thread_goes_on(error: BaseException) -> None:
    errors: list[BaseException] = []
    background = BackgroundThread("ddp-test", on_error=errors.append)
    after = threading.Event()

    def fail() -> None:
        raise error

    background.start()
    background.submit(fail)
    background.submit(after.set)
    background.close()
    assert errors == [error]
    assert after.is_set()
