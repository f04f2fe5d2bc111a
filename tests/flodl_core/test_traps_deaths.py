"""Workers that raise where the others wait for them, each moment forced: the others come to a right end.

See ``test_traps.py`` for the other ways in which a run might come to a standstill.
"""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from flodl_core import (
    ApplyPolicy,
    AverageBackend,
    DdpBuilder,
    WorkerContext,
    WorkerError,
    WorkerFailureWarning,
    WorkerLost,
)
from flodl_core.simulation import Death, Moment
from tests.flodl_core.forced import run_forced
from tests.flodl_core.moments import Moments
from tests.flodl_core.simulation.laws import check_run
from tests.flodl_core.test_faults import CrashError, join_degraded
from tests.flodl_core.test_hangs import WatchedPulse, pulses, rank_of_thread  # noqa: F401  # a fixture
from tests.flodl_core.test_traps import every_simulated_way, unlike
from tests.flodl_core.training import (
    LIMIT_S,
    POLICIES,
    Outcome,
    Samples,
    TrainLog,
    as_vector,
    configure,
    events_of,
    every_way,
    finish,
    linear,
    numbered_samples,
)

VICTIM = 1
OTHERS = (0, 2)
ROUND = 1
"""In which it dies: not the first, in which some things are special."""


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Moments:
    return Moments(monkeypatch)


def three_ranks(policy: ApplyPolicy, backend: AverageBackend, log: TrainLog) -> DdpBuilder:
    builder = configure(
        numbered_samples(603),
        policy=policy,
        backend=backend,
        devices=["cpu"] * 3,
        train_fn=log.train_fn,
        optim_factory=log.make_optimizer,
        num_epochs=4,
    )
    return builder.epoch_fn(log.begin_epoch).anchor(3)


def check_survived(builder: DdpBuilder, log: TrainLog, *, num_lost_batches: int) -> Outcome:
    """The survivors' average is returned, and all that was trained is counted but what was under way."""
    outcome = join_degraded(builder, "rank 1 gives up")
    assert torch.isfinite(as_vector(outcome.state)).all()
    assert [failure.rank for failure in outcome.handle.failures] == [VICTIM]
    assert [event.rank for event in events_of(outcome, WorkerLost)] == [VICTIM]
    assert outcome.handle.progress().totals.num_batches == log.num_calls - num_lost_batches
    assert set(log.samples.values()) == {1}, "a sample was trained twice"
    return outcome


# Between request and snapshot


@every_way
@pytest.mark.parametrize("is_first", [True, False], ids=["before the others", "after the others"])
def test_death_between_request_and_snapshot(
    policy: ApplyPolicy, backend: AverageBackend, is_first: bool, moments: Moments
) -> None:
    def on_entry(rank: int, round_: int) -> None:
        if round_ != ROUND:
            return
        if rank != VICTIM:
            if is_first:
                moments.wait_until_gone(VICTIM)
            return
        if not is_first:
            moments.wait_until_given(*OTHERS, round_=ROUND)
        raise CrashError("rank 1 gives up")

    moments.on_entry = on_entry
    log = TrainLog()
    is_sync = policy is ApplyPolicy.SYNC  # where a batch is one only once its gradients have been averaged
    check_survived(three_ranks(policy, backend, log), log, num_lost_batches=int(is_sync))


# Inside the rendezvous


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_waiting", [0, 1])
def test_death_inside_the_rendezvous(policy: ApplyPolicy, num_waiting: int, moments: Moments) -> None:
    """The others come after it has gone, or one of them waits with it and the other comes then."""
    early = OTHERS[:num_waiting]

    def on_entry(rank: int, round_: int) -> None:
        if round_ != ROUND or rank in early:
            return
        if rank == VICTIM:
            moments.wait_until_given(*early, round_=ROUND)
        else:
            moments.wait_until_gone(VICTIM)

    def on_wait(rank: int, round_: int) -> None:
        if (rank, round_) == (VICTIM, ROUND):
            raise CrashError("rank 1 gives up")

    moments.on_entry, moments.on_wait = on_entry, on_wait
    log = TrainLog()
    is_sync = policy is ApplyPolicy.SYNC
    check_survived(three_ranks(policy, AverageBackend.GLOO, log), log, num_lost_batches=int(is_sync))


@pytest.mark.parametrize("policy", POLICIES)
def test_death_inside_the_rendezvous_of_a_rank_that_still_counts_as_there(
    policy: ApplyPolicy, moments: Moments
) -> None:
    """The last of the others comes when it has raised, and before it has left: what it brought is averaged."""

    def on_entry(rank: int, round_: int) -> None:
        if round_ == ROUND and rank == OTHERS[1]:
            moments.wait_until_failed(VICTIM)

    def on_wait(rank: int, round_: int) -> None:
        if (rank, round_) == (VICTIM, ROUND):
            raise CrashError("rank 1 gives up")

    def on_failure(rank: int, round_: int) -> None:
        moments.wait_for_meeting(ROUND + 1)

    moments.on_entry, moments.on_wait, moments.on_failure = on_entry, on_wait, on_failure
    log = TrainLog()
    is_sync = policy is ApplyPolicy.SYNC
    check_survived(three_ranks(policy, AverageBackend.GLOO, log), log, num_lost_batches=int(is_sync))


# Before the first batch


Place = Callable[[DdpBuilder, Callable[[], None]], None]
"""(builder, die): let ``die`` be called on the rank that is to die."""


def in_model_factory(builder: DdpBuilder, die: Callable[[], None]) -> None:
    make = builder._settings.model_factory

    def model_factory(device: torch.device) -> nn.Module:
        if rank_of_thread() == VICTIM:
            die()
        return make(device)

    builder._settings.model_factory = model_factory


def in_epoch_fn(builder: DdpBuilder, die: Callable[[], None]) -> None:
    begin_epoch = builder._settings.epoch_fn
    assert begin_epoch is not None

    def epoch_fn(epoch: int, worker: WorkerContext) -> None:
        if worker.rank == VICTIM:
            die()
        begin_epoch(epoch, worker)

    builder.epoch_fn(epoch_fn)


def in_train_fn(builder: DdpBuilder, die: Callable[[], None]) -> None:
    compute_loss = builder._settings.train_fn

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        if rank_of_thread() == VICTIM:
            die()
        return compute_loss(model, batch)

    builder._settings.train_fn = train_fn


each_place = pytest.mark.parametrize("where", [in_model_factory, in_epoch_fn, in_train_fn])


@every_way
@each_place
def test_death_before_the_first_batch_when_the_others_wait(
    policy: ApplyPolicy,
    backend: AverageBackend,
    where: Place,
    pulses: list[WatchedPulse],  # noqa: F811  # a fixture
) -> None:
    have_trained = {rank: threading.Event() for rank in OTHERS}

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        rank = rank_of_thread()
        if rank in have_trained:
            have_trained[rank].set()
        return log.train_fn(model, batch)

    def die() -> None:
        for rank in OTHERS:
            assert have_trained[rank].wait(LIMIT_S)
            assert pulses[rank].rested.wait(LIMIT_S), "it trains on and on"
        raise CrashError("rank 1 gives up")

    log = TrainLog()
    builder = three_ranks(policy, backend, log)
    builder._settings.train_fn = train_fn
    where(builder, die)
    outcome = check_survived(builder, log, num_lost_batches=0)
    assert log.num_calls > 0
    assert outcome.handle.progress().totals.rank_batches[VICTIM] == 0


@every_way
@each_place
def test_death_before_the_first_batch_of_anybody(
    policy: ApplyPolicy, backend: AverageBackend, where: Place, moments: Moments
) -> None:
    def die() -> None:
        raise CrashError("rank 1 gives up")

    def model_factory(device: torch.device) -> nn.Module:
        rank = rank_of_thread()
        if rank in OTHERS:
            moments.wait_until_gone(VICTIM)
            moments.wait_until_told_to_end(rank)
        return linear(device)

    log = TrainLog()
    builder = three_ranks(policy, backend, log)
    builder._settings.model_factory = model_factory
    where(builder, die)
    if policy is ApplyPolicy.SYNC:  # a stop reaches the ranks with the result of a round: the first
        check_survived(builder, log, num_lost_batches=0)
        assert log.num_calls == len(OTHERS)
        return
    with builder.run() as handle, pytest.raises(WorkerError) as caught:
        handle.join(LIMIT_S)
    assert isinstance(caught.value.__cause__, CrashError)
    assert log.num_calls == 0, "there is nothing to return"


# After the last


@every_way
@pytest.mark.parametrize("victim", [0, 2])
def test_death_after_the_last_batch(
    policy: ApplyPolicy, backend: AverageBackend, victim: int, moments: Moments
) -> None:
    """It has trained all that it was dealt, and raises when it takes the last epoch's average."""

    def on_averaged(rank: int, epoch: int) -> None:
        if (rank, epoch) == (victim, 3):
            raise CrashError(f"rank {victim} gives up")

    moments.on_averaged = on_averaged
    log = TrainLog()
    with pytest.warns(WorkerFailureWarning, match=f"rank {victim}: CrashError"):
        outcome = finish(three_ranks(policy, backend, log).run())
    assert torch.isfinite(as_vector(outcome.state)).all()
    assert [failure.rank for failure in outcome.handle.failures] == [victim]
    assert outcome.handle.progress().totals.num_batches == log.num_calls
    assert log.samples == {(epoch, number): 1 for epoch in range(4) for number in range(603)}
    # under sync it is rank 0 that says that an epoch has ended
    num_told = 3 if policy is ApplyPolicy.SYNC and victim == 0 else 4
    assert [metrics.epoch for metrics in outcome.metrics] == list(range(num_told))


# All of them in virtual time


@every_simulated_way
@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("at", [0, 1, 2])
def test_death_at_any_moment_of_any_rank(policy: ApplyPolicy, meets: bool, moment: Moment, at: int) -> None:
    has_come = False
    for victim in range(3):
        death = Death(rank=victim, moment=moment, at=at)
        run = run_forced(replace(unlike(policy, meets, num_batches=20), deaths=(death,)))
        lost = [event.rank for event in run.events if isinstance(event, WorkerLost)]
        has_come = has_come or lost == [victim]
        check_run(run)
        if run.status != "completed":  # as where the moment did not come, or came when all was done
            assert lost == [victim]
            assert run.has_result, "survivors are averaged"
    is_possible = {
        Moment.SNAPSHOT: not meets,
        Moment.UPDATE: not meets,
        Moment.MEETING: meets,
        Moment.EXIT: at == 0,
    }
    assert has_come == is_possible.get(moment, True)
