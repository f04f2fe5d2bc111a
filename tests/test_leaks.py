"""The rule that a test cleans up after itself is enforced, for each kind of thing that it can leave behind."""

from __future__ import annotations

import pytest

from tests.data_paths import REPOSITORY

LEAKY = """
    import os
    import socket
    import subprocess
    import sys
    import threading

    KEPT = []

    def test_thread():
        threading.Thread(target=threading.Event().wait, name="left-thread", daemon=True).start()

    def test_child():
        KEPT.append(subprocess.Popen([sys.executable, "-c", "input()", "left-child"], stdin=subprocess.PIPE))

    def test_the_child_was_ended():
        assert KEPT.pop().communicate() == (None, None)

    def test_zombie():
        child = subprocess.Popen(["true"])
        KEPT.append(child)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # until it has ended; that leaves it unreaped

    def test_file(tmp_path):
        os.open(tmp_path / "left-file", os.O_CREAT | os.O_WRONLY)

    def test_socket():
        KEPT.append(socket.socket())

    def test_after_them():
        pass
    """

LEFT = {
    "test_thread": "daemon thread 'left-thread' *",
    "test_child": "child process *left-child",
    "test_zombie": "child process *, which ended but was not waited for",
    "test_file": "file descriptor * -> *left-file",
    "test_socket": "file descriptor * -> socket:*",
}

CLEAN = """
    import gc
    import os
    import subprocess
    import threading

    import pytest

    def test_joined_thread_and_one_on_its_way_out():
        go = threading.Event()
        done = threading.Thread(target=go.wait)
        done.start()
        ending = threading.Thread(target=lambda: go.wait() and [i for i in range(200_000)])
        ending.start()
        go.set()
        done.join()

    def test_child_that_was_waited_for():
        assert subprocess.run(["true"]).returncode == 0

    def test_closed_file_and_capture(tmp_path, capfd):
        os.write(1, b"seen")
        assert capfd.readouterr().out == "seen"
        (tmp_path / "file").write_text("x")

    def test_descriptor_that_only_a_cycle_holds(tmp_path):
        class Node:
            def __init__(self):
                self.me = self
                self.fd = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)

            def __del__(self):
                os.close(self.fd)

        gc.disable()
        Node()
        gc.enable()
    """

CONFTEST = """
    from tests.leaks import nothing_left_behind

    __all__ = ["nothing_left_behind"]
    """


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite of its own, under the fixture; run in a process of its own, which takes with it what is left behind."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    pytester.makeconftest(CONFTEST)
    return pytester


def test_what_a_test_leaves_behind_fails_that_test_by_name(suite: pytest.Pytester) -> None:
    suite.makepyfile(LEAKY)

    result = suite.runpytest_subprocess("-p", "no:cacheprovider")

    result.assert_outcomes(passed=7, errors=len(LEFT))
    for test, thing in LEFT.items():
        result.stdout.fnmatch_lines([f"*ERROR at teardown of {test} *", "the test left behind:", f"  {thing}"])


def test_a_test_that_cleans_up_passes(suite: pytest.Pytester) -> None:
    suite.makepyfile(CLEAN)

    result = suite.runpytest_subprocess("-p", "no:cacheprovider")

    result.assert_outcomes(passed=4)
