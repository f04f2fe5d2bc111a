"""Signals are raised before training, kept during it, and given back afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from flodl_cli.failures import Interrupted
from flodl_cli.stop_signals import StopSignals


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_before_training_a_signal_interrupts(signum: signal.Signals) -> None:
    with StopSignals(), pytest.raises(Interrupted) as caught:
        signal.raise_signal(signum)
    assert caught.value.signum == signum


def test_once_deferred_a_signal_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    with StopSignals() as signals:
        signals.defer()
        assert not signals.is_requested()
        signal.raise_signal(signal.SIGTERM)
        assert signals.requested == signal.SIGTERM
    assert "flodl: stopping; what has been trained is saved" in capfd.readouterr().err


def test_the_second_signal_is_told_that_the_run_is_stopping(capfd: pytest.CaptureFixture[str]) -> None:
    with StopSignals() as signals:
        signals.defer()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert signals.requested == signal.SIGTERM
    assert "flodl: already stopping" in capfd.readouterr().err


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    with StopSignals():
        pass
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_third_signal_ends_the_process() -> None:
    program = (
        "import signal\n"
        "from flodl_cli.stop_signals import StopSignals\n"
        "with StopSignals() as signals:\n"
        "    signals.defer()\n"
        "    for _ in range(3):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 130
    assert ended.stderr.splitlines()[-1] == "flodl: ended without saving"


def test_a_closed_standard_error_does_not_keep_the_run_from_stopping() -> None:
    with StopSignals() as signals:
        signals.defer()
        kept = os.dup(2)
        os.close(2)
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        assert signals.is_requested()
