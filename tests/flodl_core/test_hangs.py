"""Workers that hang: noticed, named with their stack, and gone on without."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from flodl_core import (
    ApplyPolicy,
    AverageBackend,
    ConfigError,
    DdpBuilder,
    WorkerContext,
    WorkerError,
    WorkerFailureWarning,
    WorkerLost,
    WorkerTimeoutError,
)
from flodl_core.pulse import Pulse, late_ranks
from tests.flodl_core.training import (
    LIMIT_S,
    Samples,
    as_vector,
    configure,
    events_of,
    every_way,
    linear,
    mean_squared_error,
    numbered_samples,
    train,
)

TIMEOUT_S = 500.0
"""Never waited for: a worker that hangs makes its own pulse this much older."""


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class WatchedPulse(Pulse):
    """Can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.rested = threading.Event()

    def beat(self) -> None:
        super().beat()
        self.rested.clear()

    def rest(self) -> None:
        super().rest()
        self.rested.set()


def rank_of_thread() -> int | None:
    """Rank of the worker whose thread this is, or None where it is not a worker's."""
    kind, _, rank = threading.current_thread().name.rpartition("-")
    return int(rank) if kind == "ddp-worker" else None


class Sleeper:
    """A worker's own function that does not return on one rank until the test is over.

    Args:
        rank: Which.
        pulses: Those of all ranks, in order, once they are made.
    """

    def __init__(self, rank: int, pulses: list[WatchedPulse]) -> None:
        self.pulses = pulses
        self._rank = rank
        self._wake = threading.Event()

    def hang(self) -> None:
        """Return at once, but on the rank in question."""
        if rank_of_thread() == self._rank:
            since_s = self.pulses[self._rank].since_s
            assert since_s is not None
            self.pulses[self._rank].since_s = since_s - TIMEOUT_S
            assert self._wake.wait(LIMIT_S)

    def wake(self) -> None:
        """Let it return, and its thread with it."""
        self._wake.set()
        for thread in threading.enumerate():
            if thread.name.startswith("ddp-worker"):
                thread.join(LIMIT_S)


@pytest.fixture
def pulses(monkeypatch: pytest.MonkeyPatch) -> list[WatchedPulse]:
    made: list[WatchedPulse] = []

    def make() -> WatchedPulse:
        made.append(WatchedPulse())
        return made[-1]

    monkeypatch.setattr("flodl_core.run.Pulse", make)
    return made


@pytest.fixture
def sleeper(pulses: list[WatchedPulse]) -> Iterator[Sleeper]:
    made = Sleeper(1, pulses)
    yield made
    made.wake()


def hangs_in_train_fn(builder: DdpBuilder, sleeper: Sleeper) -> None:
    num_calls = [0, 0, 0]

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        rank = rank_of_thread()
        assert rank is not None
        num_calls[rank] += 1
        if num_calls[rank] == 4:
            sleeper.hang()
        return mean_squared_error(model, batch)

    builder._settings.train_fn = train_fn


def hangs_in_first_batch(builder: DdpBuilder, sleeper: Sleeper) -> None:
    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        sleeper.hang()
        return mean_squared_error(model, batch)

    builder._settings.train_fn = train_fn


def hangs_in_epoch_fn(builder: DdpBuilder, sleeper: Sleeper) -> None:
    def epoch_fn(epoch: int, _worker: WorkerContext) -> None:
        if epoch == 1:
            sleeper.hang()

    builder.epoch_fn(epoch_fn)


def hangs_in_model_factory(builder: DdpBuilder, sleeper: Sleeper) -> None:
    def model_factory(device: torch.device) -> nn.Module:
        sleeper.hang()
        return linear(device)

    builder._settings.model_factory = model_factory


def test_worker_is_late_once_it_has_been_at_one_thing_for_the_limit() -> None:
    clock = Clock()
    pulses = [Pulse(clock) for _ in range(3)]
    pulses[0].beat()
    pulses[1].beat()
    clock.now_s += 9.9
    pulses[1].beat()
    assert late_ranks(pulses, limit_s=10.0, now_s=clock.now_s) == []
    clock.now_s += 0.1
    assert late_ranks(pulses, limit_s=10.0, now_s=clock.now_s) == [0]
    clock.now_s += 9.9
    assert late_ranks(pulses, limit_s=10.0, now_s=clock.now_s) == [0, 1]


def test_worker_that_waits_for_others_is_not_late() -> None:
    clock = Clock()
    pulse = Pulse(clock)
    assert late_ranks([pulse], limit_s=10.0, now_s=1e9) == []  # not begun
    pulse.beat()
    pulse.rest()
    clock.now_s += 1000.0
    assert late_ranks([pulse], limit_s=10.0, now_s=clock.now_s) == []
    pulse.beat()
    assert late_ranks([pulse], limit_s=10.0, now_s=clock.now_s + 10.0) == [0]


@every_way
@pytest.mark.parametrize("where", [hangs_in_train_fn, hangs_in_first_batch, hangs_in_epoch_fn, hangs_in_model_factory])
def test_run_goes_to_its_end_without_a_worker_that_hangs(
    policy: ApplyPolicy, backend: AverageBackend, where: Callable[[DdpBuilder, Sleeper], None], sleeper: Sleeper
) -> None:
    builder = configure(numbered_samples(400), policy=policy, backend=backend, devices=["cpu"] * 3, num_epochs=3)
    builder.worker_timeout_s(TIMEOUT_S)
    where(builder, sleeper)
    with pytest.warns(WorkerFailureWarning, match=r"rank 1: WorkerTimeoutError: not done with a batch after 500 s"):
        outcome = train(builder)
    assert outcome.handle.status == "failed"
    assert torch.isfinite(as_vector(outcome.state)).all()
    (failure,) = outcome.handle.failures
    assert isinstance(failure.error, WorkerTimeoutError)
    assert "test_hangs.py" in str(failure.error), "it is named where it hangs"
    assert "in hang" in failure.traceback
    (lost,) = events_of(outcome, WorkerLost)
    assert lost.rank == 1
    assert outcome.handle.progress().totals.num_batches == outcome.events[-1].global_step  # type: ignore[union-attr]  # RunEnded


@every_way
def test_worker_that_comes_to_reaches_nobody(policy: ApplyPolicy, backend: AverageBackend, sleeper: Sleeper) -> None:
    builder = configure(numbered_samples(400), policy=policy, backend=backend, devices=["cpu"] * 3, num_epochs=3)
    builder.worker_timeout_s(TIMEOUT_S)
    hangs_in_train_fn(builder, sleeper)
    with builder.run() as handle:
        events = iter(handle.events())
        assert any(isinstance(event, WorkerLost) for event in events)
        sleeper.wake()  # while the others may still be on their way to the end
        with pytest.warns(WorkerFailureWarning):
            handle.join(LIMIT_S)
        assert [event for event in events if isinstance(event, WorkerLost)] == [], "it is lost once"
        assert len(handle.failures) == 1


def test_single_worker_that_hangs_fails_the_run(pulses: list[WatchedPulse]) -> None:
    sleeper = Sleeper(0, pulses)
    builder = configure(numbered_samples(40), devices=["cpu"]).worker_timeout_s(TIMEOUT_S)
    hangs_in_first_batch(builder, sleeper)
    with builder.run() as handle, pytest.raises(WorkerError, match="not done with a batch") as caught:
        handle.join(LIMIT_S)
    sleeper.wake()
    assert isinstance(caught.value.__cause__, WorkerTimeoutError)


@every_way
def test_worker_that_waits_for_a_slow_one_is_not_at_anything(
    policy: ApplyPolicy, backend: AverageBackend, pulses: list[WatchedPulse]
) -> None:
    num_waits: list[int] = []

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        if rank_of_thread() == 1:
            assert pulses[0].rested.wait(LIMIT_S), "the other rank trains on and on"
            num_waits.append(1)
        return mean_squared_error(model, batch)

    builder = configure(numbered_samples(64), policy=policy, backend=backend, train_fn=train_fn)
    outcome = train(builder.worker_timeout_s(TIMEOUT_S))
    assert outcome.handle.status == "completed"
    assert len(num_waits) >= 2, "in each epoch"


def test_limit_may_be_taken_off() -> None:
    handle = configure(numbered_samples(40)).worker_timeout_s(None).run()
    handle.join(LIMIT_S)
    assert handle.training_meta["worker_timeout_s"] is None


def test_checkpoints_that_a_run_cannot_go_on_from_yet_are_said_to_be_so() -> None:
    builder = configure(numbered_samples(40))
    for method in (builder.checkpoint_dir, builder.resume_from):
        with pytest.raises(ConfigError, match="not built yet"):
            method("runs")


@pytest.mark.parametrize("choice", ["continue", "restart"])
def test_failures_that_a_run_cannot_survive_yet_are_said_to_be_so(choice: str) -> None:
    with pytest.raises(ConfigError, match="not built yet"):
        configure(numbered_samples(40)).on_worker_failure(choice)
