"""What the builder's rarer methods do to a run."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl_core import ConfigError, Ddp, DdpBuilder, EpochEnded, RunEnded, StepWindow, SyncEvent
from flodl_core.policies import ApplyPolicy, AverageBackend
from tests.flodl_core.training import (
    LIMIT_S,
    TrainLog,
    as_vector,
    configure,
    each_backend,
    every_local_way,
    every_way,
    finish,
    linear,
    mean_squared_error,
    numbered_samples,
    sgd,
)

NUM_SAMPLES = 203


def new_builder() -> DdpBuilder:
    return Ddp.builder(linear, sgd, mean_squared_error).dataset(numbered_samples(40)).batch_size(4).num_epochs(1)


def logged(
    log: TrainLog,
    *,
    policy: ApplyPolicy,
    backend: AverageBackend,
    num_samples: int,
    num_epochs: int,
    batch_size: int = 8,
) -> DdpBuilder:
    """A run on two workers that writes down what it trains."""
    builder = configure(
        numbered_samples(num_samples),
        policy=policy,
        backend=backend,
        num_epochs=num_epochs,
        batch_size=batch_size,
        train_fn=log.train_fn,
        optim_factory=log.make_optimizer,
    )
    return builder.epoch_fn(log.begin_epoch)


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("grad_accumulation", (0,), "grad_accumulation must be an integer from 1 to 65536, not 0"),
        ("max_steps", (0,), "max_steps must be an integer at least 1, not 0"),
        ("max_time_s", (0,), "max_time_s must be a finite number above 0, not 0"),
        ("drop_last", ("false",), "drop_last must be True or False, not 'false'"),
        ("divergence_threshold", (float("nan"),), "divergence_threshold must be a finite number above 0, not nan"),
        ("progressive_dispatch", (1,), "progressive_dispatch must be True or False, not 1"),
        ("partition_ratios", ("12",), "partition_ratios must be numbers above 0, one for each worker, not '12'"),
        ("partition_ratios", ([],), r"partition_ratios must be numbers above 0, one for each worker, not \[\]"),
        ("partition_ratios", ([1, 0],), "each of partition_ratios must be a finite number above 0, not 0"),
        ("speed_hint", (-1, 2.0), "slow_rank must be an integer at least 0, not -1"),
        ("speed_hint", (0, 0.5), r"ratio must be a finite number at least 1 and at most 1e\+06, not 0.5"),
        ("outer_optimizer", (0,), "outer lr must be a finite number above 0, not 0"),
        ("outer_optimizer", (1, 1.0), "the outer momentum must be from 0 to below 1, not 1.0"),
        ("outer_optimizer", (1, 0.0), "nesterov needs an outer momentum above 0"),
        ("amp", ("float16",), "amp in float16 needs loss scaling, which is not built: use bfloat16"),
        ("amp", ("int8",), "amp must be bfloat16 or None, not 'int8'"),
        ("workers", ("process",), r"workers\('process'\) is not built yet: use thread"),
        ("workers", ("fork",), "workers must be thread, not 'fork'"),
        ("checkpoint_fn", (3,), "checkpoint_fn must be callable, not int"),
        ("checkpoint_every", (0,), "checkpoint_every must be an integer at least 1, not 0"),
    ],
)
def test_wrong_value_is_refused_at_once(method: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        getattr(new_builder(), method)(*arguments)


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("partition_ratios", ([1, 2, 3],), "partition_ratios must have one number for each of the 2 workers, not 3"),
        ("speed_hint", (2, 2.0), "speed_hint names rank 2, and the last is 1"),
        ("checkpoint_every", (1,), "checkpoint_every needs a checkpoint_fn to call"),
    ],
)
def test_what_does_not_go_together_is_refused_by_run(method: str, arguments: tuple[Any, ...], message: str) -> None:
    builder = new_builder().devices(["cpu", "cpu"])
    with pytest.raises(ConfigError, match=message):
        getattr(builder, method)(*arguments).run()


def test_outer_optimizer_is_refused_with_sync() -> None:
    builder = new_builder().devices(["cpu", "cpu"]).policy("sync").outer_optimizer()
    with pytest.raises(ConfigError, match="policy sync averages gradients: use cadence or async"):
        builder.run()


# How epochs are dealt


@every_way
@pytest.mark.parametrize("is_progressive", [True, False])
def test_each_sample_is_trained_once_however_epochs_are_dealt(
    policy: ApplyPolicy, backend: AverageBackend, is_progressive: bool
) -> None:
    log = TrainLog()
    builder = logged(log, policy=policy, backend=backend, num_samples=NUM_SAMPLES, num_epochs=3)
    builder.progressive_dispatch(is_progressive).run().join(LIMIT_S)
    assert log.samples == {(epoch, number): 1 for epoch in range(3) for number in range(NUM_SAMPLES)}
    assert log.begun == {0: [0, 1, 2], 1: [0, 1, 2]}


@every_way
def test_ratios_override_speed(policy: ApplyPolicy, backend: AverageBackend) -> None:
    log = TrainLog()
    builder = logged(log, policy=policy, backend=backend, num_samples=160, num_epochs=2)
    handle = builder.partition_ratios([3, 1]).run()
    handle.join(LIMIT_S)
    assert log.samples == {(epoch, number): 1 for epoch in range(2) for number in range(160)}
    assert handle.progress().totals.rank_samples == (240, 80)


# How long a run lasts


@every_local_way
def test_limit_of_steps_is_met_exactly(policy: ApplyPolicy, backend: AverageBackend) -> None:
    log = TrainLog()
    builder = logged(log, policy=policy, backend=backend, num_samples=NUM_SAMPLES, num_epochs=5)
    handle = builder.max_steps(61).run()
    state = handle.join(LIMIT_S)
    assert log.num_steps == 61
    assert handle.status == "completed"
    assert state.params
    assert max(log.samples.values()) == 1
    assert [event.epoch for event in handle.events() if isinstance(event, EpochEnded)] == [0, 1]


@each_backend
def test_sync_ends_with_the_round_that_reaches_the_limit(backend: AverageBackend) -> None:
    log = TrainLog()
    builder = logged(log, policy=ApplyPolicy.SYNC, backend=backend, num_samples=NUM_SAMPLES, num_epochs=5)
    handle = builder.max_steps(7).run()
    handle.join(LIMIT_S)
    assert log.num_steps == 8
    assert handle.status == "completed"


@every_way
def test_limit_of_time_ends_the_run_as_completed(policy: ApplyPolicy, backend: AverageBackend) -> None:
    log = TrainLog()
    builder = logged(log, policy=policy, backend=backend, num_samples=NUM_SAMPLES, num_epochs=10_000_000)
    handle = builder.max_time_s(0.2).run()
    state = handle.join(LIMIT_S)
    assert state.params
    ended = [event for event in handle.events() if isinstance(event, RunEnded)]
    assert [event.status for event in ended] == ["completed"]
    assert ended[0].time_s >= 0.2
    assert handle.progress().totals.num_batches == log.num_steps, "what was trained is counted"


# Steps


@pytest.mark.parametrize("is_slow", [False, True])
def test_accumulated_gradients_are_those_of_one_large_batch(is_slow: bool) -> None:
    samples = numbered_samples(50)
    dataset = list(zip(*samples, strict=True)) if is_slow else samples
    sizes: list[int] = []

    def train_fn(model: nn.Module, batch: Any) -> Tensor:
        sizes.append(len(batch[0]))
        return mean_squared_error(model, batch)

    def train(batch_size: int, accumulation: int) -> Tensor:
        sizes.clear()
        builder = Ddp.builder(linear, sgd, train_fn).dataset(dataset).batch_size(batch_size).num_epochs(2)
        return as_vector(builder.grad_accumulation(accumulation).devices(["cpu"]).run().join(LIMIT_S))

    whole = train(15, 1)
    accumulated = train(5, 3)
    assert sizes == [*[5] * 10, *[5] * 10], "50 samples are three steps of 15, and one of 5"
    torch.testing.assert_close(accumulated, whole, rtol=1e-5, atol=1e-6)
    assert torch.equal(train(4, 4), train(4, 4))


@every_way
def test_accumulation_counts_steps_not_batches(policy: ApplyPolicy, backend: AverageBackend) -> None:
    log = TrainLog()
    builder = logged(log, policy=policy, backend=backend, num_samples=160, batch_size=4, num_epochs=1)
    handle = builder.grad_accumulation(2).run()
    handle.join(LIMIT_S)
    assert (log.num_calls, log.num_steps) == (40, 20)
    assert handle.progress().totals.num_batches == 20
    windows = [event for event in handle.events() if isinstance(event, StepWindow)]
    assert sum(window.num_samples for window in windows) == 160
    assert all(window.loss == window.loss for window in windows)


def test_autocast_covers_train_fn_and_leaves_parameters_as_they_are() -> None:
    dtypes: set[tuple[torch.dtype, torch.dtype, bool]] = set()

    def train_fn(model: nn.Module, batch: Any) -> Tensor:
        out = model(batch[0])
        weight = next(model.parameters())
        dtypes.add((out.dtype, weight.dtype, torch.is_autocast_enabled("cpu")))
        return mean_squared_error(model, batch)

    def train(amp: Any) -> dict[str, Tensor]:
        dtypes.clear()
        builder = Ddp.builder(linear, sgd, train_fn).dataset(numbered_samples(40)).batch_size(4).num_epochs(1)
        return dict(builder.devices(["cpu", "cpu"]).amp(amp).run().join(LIMIT_S).params)

    assert all(param.dtype == torch.float32 for param in train("bfloat16").values())
    assert dtypes == {(torch.bfloat16, torch.float32, True)}
    train(None)
    assert dtypes == {(torch.float32, torch.float32, False)}


# Callbacks


@every_way
def test_checkpoint_fn_gets_the_average_after_every_so_many_epochs(
    policy: ApplyPolicy, backend: AverageBackend
) -> None:
    saved: list[tuple[int, Tensor]] = []

    def checkpoint(version: int, model: nn.Module) -> None:
        saved.append((version, torch.cat([param.detach().flatten().clone() for param in model.parameters()])))

    builder = logged(TrainLog(), policy=policy, backend=backend, num_samples=80, num_epochs=4)
    state = builder.checkpoint_every(2).checkpoint_fn(checkpoint).run().join(LIMIT_S)
    versions = [version for version, _ in saved]
    assert len(versions) == 2
    assert 0 < versions[0] < versions[1]
    assert not torch.equal(saved[0][1], saved[1][1])
    assert torch.equal(saved[1][1], as_vector(state))


@each_backend
def test_every_average_of_sync_counts_where_the_lowest_rank_has_no_samples(backend: AverageBackend) -> None:
    log, versions = TrainLog(), list[int]()
    builder = logged(log, policy=ApplyPolicy.SYNC, backend=backend, num_samples=64, num_epochs=3)
    builder.partition_ratios([0.001, 1]).checkpoint_fn(lambda version, _model: versions.append(version))
    outcome = finish(builder.run())
    assert outcome.handle.progress().totals.rank_samples == (0, 3 * 64)
    num_syncs = [event.num_syncs for event in outcome.events if isinstance(event, SyncEvent)]
    assert sum(num_syncs) == outcome.handle.progress().num_syncs == 3 * 4
    assert versions == [4, 8, 12]


@each_backend
def test_sync_ends_with_the_round_that_reaches_the_limit_where_rounds_are_small(backend: AverageBackend) -> None:
    log = TrainLog()
    builder = logged(log, policy=ApplyPolicy.SYNC, backend=backend, num_samples=1, num_epochs=9)
    handle = builder.max_steps(5).run()
    handle.join(LIMIT_S)
    assert (log.num_calls, handle.progress().totals.num_batches) == (5, 5)


def test_versions_of_a_single_device_count_epochs() -> None:
    versions: list[int] = []
    builder = (
        new_builder().num_epochs(3).devices(["cpu"]).checkpoint_fn(lambda version, _model: versions.append(version))
    )
    builder.run().join(LIMIT_S)
    assert versions == [1, 2, 3]


# One call


def test_auto_takes_every_option_by_name() -> None:
    handle = Ddp.auto(
        linear,
        sgd,
        mean_squared_error,
        numbered_samples(40),
        batch_size=4,
        num_epochs=2,
        devices=["cpu", "cpu"],
        policy="async",
        speed_hint=(1, 2.0),
        outer_optimizer={"lr": 0.5, "momentum": 0.5},
        no_divergence_guard=True,
    )
    handle.join(LIMIT_S)
    meta = handle.training_meta
    assert (meta["policy"], meta["outer_lr"], meta["divergence_threshold"]) == ("async", 0.5, None)
    assert meta["speed_hint"] == [1, 2.0]


def test_auto_refuses_an_unknown_option() -> None:
    with pytest.raises(ConfigError, match="there is no option 'polcy': use amp, anchor,"):
        Ddp.auto(linear, sgd, mean_squared_error, numbered_samples(4), batch_size=4, num_epochs=1, polcy="sync")


# A rank that hangs


@pytest.mark.parametrize("policy", list(ApplyPolicy))
def test_aborted_collectives_wake_the_others_and_keep_what_was_trained(policy: ApplyPolicy) -> None:
    hangs, released = threading.Event(), threading.Event()
    num_calls = dict.fromkeys(("ddp-worker-0", "ddp-worker-1"), 0)

    def train_fn(model: nn.Module, batch: Any) -> Tensor:
        name = threading.current_thread().name
        num_calls[name] += 1
        if name == "ddp-worker-1" and num_calls[name] == 3:
            hangs.set()
            assert released.wait(LIMIT_S)
        return mean_squared_error(model, batch)

    builder = Ddp.builder(linear, sgd, train_fn).dataset(numbered_samples(4000)).batch_size(4).num_epochs(50)
    handle = builder.devices(["cpu", "cpu"]).policy(policy).backend("gloo").run()
    try:
        assert hangs.wait(LIMIT_S)
        handle.abort_collectives()
        with pytest.raises(TimeoutError, match="training still goes on"):
            handle.join(0.0)
    finally:
        released.set()
    assert handle.join(LIMIT_S).params
    assert handle.status == "cancelled"
    assert handle.failures == ()
