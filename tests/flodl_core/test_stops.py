"""How a run ends before its time: cancelled, left, forgotten, or with the interpreter."""

import gc
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flodl_core import ApplyPolicy, AverageBackend, DdpBuilder, DdpHandle, EpochMetrics, RunEnded, WorkerContext
from flodl_core.commands import Command, Send
from flodl_core.messages import Shutdown
from flodl_core.run import Run
from tests.flodl_core.training import (
    LIMIT_S,
    Samples,
    as_vector,
    configure,
    every_way,
    finish,
    linear,
    mean_squared_error,
    numbered_samples,
)

MANY_EPOCHS = 100_000
"""More than any machine trains before a test has cancelled."""
ROOT = Path(__file__).parents[2]


def endless(policy: ApplyPolicy, backend: AverageBackend, **kwargs: object) -> DdpBuilder:
    return configure(numbered_samples(160), policy=policy, backend=backend, num_epochs=MANY_EPOCHS, **kwargs)  # type: ignore[arg-type]  # passed on


class Signal:
    """Remembers the handle for functions that are given to the builder before there is one."""

    def __init__(self) -> None:
        self._handle: DdpHandle | None = None
        self._is_known = threading.Event()

    def run(self, builder: DdpBuilder) -> DdpHandle:
        self._handle = builder.run()
        self._is_known.set()
        return self._handle

    def cancel(self) -> None:
        assert self._is_known.wait(LIMIT_S)
        assert self._handle is not None
        self._handle.cancel()


def check_cancelled(handle: DdpHandle) -> None:
    outcome = finish(handle)
    assert handle.status == "cancelled"
    assert handle.failures == ()
    assert torch.isfinite(as_vector(outcome.state)).all()
    last = outcome.events[-1]
    assert isinstance(last, RunEnded)
    totals = handle.progress().totals
    assert (last.status, last.global_step) == ("cancelled", totals.num_batches)
    assert len(outcome.metrics) < MANY_EPOCHS


@every_way
def test_cancelled_from_train_fn(policy: ApplyPolicy, backend: AverageBackend) -> None:
    signal = Signal()
    num_calls = 0

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 30:
            signal.cancel()
        return mean_squared_error(model, batch)

    check_cancelled(signal.run(endless(policy, backend, train_fn=train_fn)))


@every_way
def test_cancelled_from_epoch_fn(policy: ApplyPolicy, backend: AverageBackend) -> None:
    signal = Signal()

    def epoch_fn(epoch: int, worker: WorkerContext) -> None:
        if epoch == 2:
            signal.cancel()

    check_cancelled(signal.run(endless(policy, backend).epoch_fn(epoch_fn)))


@every_way
def test_cancelled_from_metrics_fn(policy: ApplyPolicy, backend: AverageBackend) -> None:
    signal = Signal()

    def metrics_fn(metrics: EpochMetrics) -> None:
        if metrics.epoch == 1:
            signal.cancel()

    check_cancelled(signal.run(endless(policy, backend).metrics_fn(metrics_fn)))


@every_way
def test_cancelled_in_the_middle_of_reading_metrics(policy: ApplyPolicy, backend: AverageBackend) -> None:
    handle = endless(policy, backend).run()
    for metrics in handle.metrics():
        if metrics.epoch == 1:
            handle.cancel()
    check_cancelled(handle)


def test_single_device_is_cancelled() -> None:
    signal = Signal()
    builder = endless(ApplyPolicy.CADENCE, AverageBackend.CPU, devices=["cpu"]).metrics_fn(
        lambda metrics: signal.cancel()
    )
    check_cancelled(signal.run(builder))


@every_way
def test_cancelled_before_the_first_batch_returns_the_first_parameters(
    monkeypatch: pytest.MonkeyPatch, policy: ApplyPolicy, backend: AverageBackend
) -> None:
    signal = Signal()
    told_to_end = threading.Event()
    execute = Run._execute

    def execute_and_tell(self: Run, commands: list[Command]) -> None:
        execute(self, commands)
        if any(isinstance(command, Send) and isinstance(command.message, Shutdown) for command in commands):
            told_to_end.set()

    def factory(device: torch.device) -> nn.Module:
        if threading.current_thread().name.startswith("ddp-worker-"):
            signal.cancel()
            assert told_to_end.wait(LIMIT_S)  # so that a worker finds it among its first messages
        return linear(device)

    monkeypatch.setattr(Run, "_execute", execute_and_tell)
    handle = signal.run(endless(policy, backend, model_factory=factory).seed(5))
    outcome = finish(handle)
    assert handle.status == "cancelled"
    if policy is ApplyPolicy.SYNC:  # all ranks end with the result of one round: the first
        assert handle.progress().totals.num_batches == 2
        return
    assert handle.progress().totals.num_batches == 0
    torch.manual_seed(5)
    assert torch.equal(outcome.state.params["weight"], linear(torch.device("cpu")).get_parameter("weight"))


def test_all_that_was_trained_before_a_cancel_is_counted() -> None:
    signal = Signal()
    lock = threading.Lock()
    num_calls = 0

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        nonlocal num_calls
        with lock:
            num_calls += 1
        return mean_squared_error(model, batch)

    builder = endless(ApplyPolicy.CADENCE, AverageBackend.CPU, train_fn=train_fn)
    handle = signal.run(builder.metrics_fn(lambda metrics: signal.cancel()))
    finish(handle)
    assert handle.progress().totals.num_batches == num_calls


def test_cancel_after_the_end_changes_nothing() -> None:
    handle = configure(numbered_samples(16)).run()
    state = handle.join(LIMIT_S)
    handle.cancel()
    handle.cancel()
    assert handle.status == "completed"
    assert torch.equal(as_vector(handle.join()), as_vector(state))


# Left, forgotten


@every_way
def test_exception_that_leaves_the_context_stops_the_run(policy: ApplyPolicy, backend: AverageBackend) -> None:
    handle = endless(policy, backend).run()

    def leave_with_an_error() -> None:
        with handle:
            assert handle.next_metrics(LIMIT_S) is not None
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        leave_with_an_error()
    assert handle.status == "cancelled"


def run_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("ddp-")]


@every_way
def test_forgotten_handle_stops_the_run(policy: ApplyPolicy, backend: AverageBackend) -> None:
    handle = endless(policy, backend).run()
    assert handle.next_metrics(LIMIT_S) is not None
    threads = run_threads()
    assert len(threads) == 5
    del handle
    gc.collect()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), thread.name


def test_iterator_of_metrics_keeps_its_run_alive() -> None:
    epochs = [metrics.epoch for metrics in configure(numbered_samples(64), num_epochs=20).run().metrics()]
    assert epochs == list(range(20))


# The interpreter's exit

SCRIPT = """
import logging, sys, threading
import torch
from flodl_core import Ddp
from torch import nn

logging.basicConfig(level=logging.ERROR)
started = threading.Event()

def train_fn(model, batch):
    started.set()
    return model(batch[0] if isinstance(batch, list) else batch).square().mean()

data = {data}
handle = (
    Ddp.builder(lambda device: nn.Linear(4, 1), lambda params: torch.optim.SGD(params, lr=1e-3), train_fn)
    .dataset(data).batch_size(4).num_epochs(10**6).policy({policy!r}).backend({backend!r}).devices(["cpu", "cpu"])
    .run()
)
assert started.wait(30)
{ending}
"""


def run_script(ending: str, *, policy: str, backend: str, data: str) -> "subprocess.CompletedProcess[str]":
    script = SCRIPT.format(ending=ending, policy=policy, backend=backend, data=data)
    # the limit is for a run that hangs: it would go on for days
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )


@pytest.mark.parametrize(
    ("policy", "backend", "data"),
    [
        ("sync", "gloo", "torch.ones(64, 4)"),
        ("cadence", "cpu", "torch.ones(64, 4)"),
        ("async", "gloo", "[torch.ones(4)] * 64"),  # a map-style dataset, with threads that read ahead
    ],
)
def test_interpreter_ends_with_a_run_under_way(policy: str, backend: str, data: str) -> None:
    result = run_script("", policy=policy, backend=backend, data=data)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_interpreter_ends_with_the_error_of_its_main_thread() -> None:
    result = run_script("raise SystemExit(3)", policy="cadence", backend="gloo", data="torch.ones(64, 4)")
    assert (result.returncode, result.stderr) == (3, "")


# What is written of it


def test_log_has_one_line_for_each_change_of_phase(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="flodl_core"):
        finish(configure(numbered_samples(640), num_epochs=5).run())
    assert "2 devices (homogeneous) | cpu | cpu | policy=cadence backend=cpu" in caplog.text
    assert len(caplog.records) < 10, "a line for each batch or average is too many"
