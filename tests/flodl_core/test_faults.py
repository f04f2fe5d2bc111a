"""What a run makes of things that go wrong: one clear error or a right result each, no hang, no thread left."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl_core import (
    ApplyPolicy,
    AverageBackend,
    ConfigError,
    Ddp,
    DdpBuilder,
    DdpHandle,
    EpochMetrics,
    ModelError,
    NonFiniteError,
    RunEnded,
    SyncEvent,
    TrainFnError,
    WorkerContext,
    WorkerError,
    WorkerFailureWarning,
    WorkerLost,
)
from flodl_core.averaging import Averager
from flodl_core.tally import Tally
from tests.flodl_core.training import (
    BACKENDS,
    LIMIT_S,
    Outcome,
    Samples,
    as_vector,
    configure,
    events_of,
    every_local_way,
    every_way,
    finish,
    linear,
    mean_squared_error,
    numbered_samples,
    sgd,
    train,
)


class CrashError(RuntimeError):
    """What the tests' own functions raise."""


def rank_of_thread() -> int:
    """Rank of the worker whose thread this is."""
    return int(threading.current_thread().name.rpartition("-")[2])


class CrashOn:
    """A ``train_fn`` that fails on one rank, or on all, after some batches of that rank.

    ``waits`` lets it fail only once another rank has trained: a run in which nothing was has no state to return.
    """

    def __init__(self, rank: int | None, *, after: int, waits: bool = False) -> None:
        self.rank = rank
        self.after = after
        self.num_trained: dict[int, int] = {}
        self._other_has_trained = threading.Event()
        if not waits:
            self._other_has_trained.set()

    def __call__(self, model: nn.Module, batch: Samples) -> Tensor:
        rank = rank_of_thread()
        done = self.num_trained.get(rank, 0)
        if done > 0 and rank != self.rank:
            self._other_has_trained.set()
        if self.rank in (None, rank) and done >= self.after:
            assert self._other_has_trained.wait(LIMIT_S)
            raise CrashError(f"rank {rank} gives up")
        self.num_trained[rank] = done + 1
        return mean_squared_error(model, batch)


def join_failed(builder: DdpBuilder) -> tuple[WorkerError, DdpHandle]:
    """Run to the end, which must be a failure."""
    with builder.run() as handle, pytest.raises(WorkerError) as caught:
        handle.join(LIMIT_S)
    assert handle.status == "failed"
    return caught.value, handle


def join_degraded(builder: DdpBuilder, message: str) -> Outcome:
    """Run to the end, at which only some workers are left."""
    with pytest.warns(WorkerFailureWarning, match=message):
        outcome = train(builder)
    assert outcome.handle.status == "failed"
    assert outcome.events[-1] == events_of(outcome, RunEnded)[0]
    return outcome


# A worker that raises


@every_way
@pytest.mark.parametrize("after", [0, 5])
def test_survivors_average_is_returned_when_train_fn_raises_on_one_rank(
    policy: ApplyPolicy, backend: AverageBackend, after: int
) -> None:
    crash = CrashOn(1, after=after, waits=policy is not ApplyPolicy.SYNC)  # in sync the others could not train on
    builder = configure(
        numbered_samples(4000), policy=policy, backend=backend, devices=["cpu"] * 3, train_fn=crash, num_epochs=50
    )
    outcome = join_degraded(builder, "rank 1 gives up")
    assert torch.isfinite(as_vector(outcome.state)).all()
    failure = outcome.handle.failures[0]
    assert (failure.rank, type(failure.error)) == (1, CrashError)
    assert "rank 1 gives up" in failure.traceback
    assert [event.rank for event in events_of(outcome, WorkerLost)] == [1]
    # what the lost rank had trained is counted too, though it never came to report it
    assert outcome.handle.progress().totals.num_batches == sum(crash.num_trained.values())
    assert outcome.events[-1].global_step == sum(crash.num_trained.values())  # type: ignore[union-attr]  # RunEnded


@every_way
def test_failure_of_all_ranks_reaches_the_caller_with_its_cause(policy: ApplyPolicy, backend: AverageBackend) -> None:
    all_there = threading.Barrier(2)  # else the first failure stops the other rank before it fails

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        all_there.wait(LIMIT_S)
        raise CrashError("nobody is spared")

    error, handle = join_failed(configure(numbered_samples(400), policy=policy, backend=backend, train_fn=train_fn))
    assert isinstance(error.__cause__, CrashError)
    assert sorted(failure.rank for failure in error.failures) == [0, 1]
    assert len(handle.failures) == 2


def test_failure_of_a_single_device_is_an_error() -> None:
    error, _ = join_failed(configure(numbered_samples(40), devices=["cpu"], train_fn=CrashOn(0, after=2)))
    assert isinstance(error.__cause__, CrashError)


@every_local_way
def test_failure_in_the_only_batch_leaves_nothing_to_return(policy: ApplyPolicy, backend: AverageBackend) -> None:
    error, _ = join_failed(
        configure(numbered_samples(8), policy=policy, backend=backend, train_fn=CrashOn(None, after=0), num_epochs=1)
    )
    assert isinstance(error.__cause__, CrashError)


class FailingDataSet:
    """Gives batches until one sample is asked for; or fails on all ranks at once, and always."""

    def __init__(self, samples: Samples, bad: int | None) -> None:
        self._samples = samples
        self._bad = bad
        self._all_there = threading.Barrier(2)

    def __len__(self) -> int:
        return len(self._samples[0])

    def get_batch(self, indices: Tensor) -> Any:
        if self._bad is None:
            self._all_there.wait(LIMIT_S)
        if self._bad is None or self._bad in indices.tolist():
            raise CrashError("the disk is gone")
        return tuple(tensor[indices] for tensor in self._samples)


@every_way
def test_dataset_that_always_raises_fails_the_run(policy: ApplyPolicy, backend: AverageBackend) -> None:
    error, _ = join_failed(configure(FailingDataSet(numbered_samples(100), None), policy=policy, backend=backend))
    assert isinstance(error.__cause__, CrashError)


@every_way
def test_dataset_that_raises_for_one_sample_leaves_the_survivors_average(
    policy: ApplyPolicy, backend: AverageBackend
) -> None:
    # one epoch: in the next, the other rank may be dealt the bad sample
    builder = configure(FailingDataSet(numbered_samples(100), 17), policy=policy, backend=backend, num_epochs=1)
    join_degraded(builder, "the disk is gone")


class Rows:
    """A map-style dataset."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples[0])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._samples[0][index], self._samples[1][index]


def test_collate_fn_that_raises_fails_the_run() -> None:
    def collate(rows: list[Any]) -> Any:
        raise CrashError("cannot be stacked")

    error, _ = join_failed(configure(Rows(numbered_samples(50)), devices=["cpu"]).collate_fn(collate))
    assert isinstance(error.__cause__, CrashError)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch: 0.5, "not float"),
        (lambda model, batch: None, "not NoneType"),
        (lambda model, batch: model(batch[0]), r"shape \(8, 1\)"),
        (lambda model, batch: mean_squared_error(model, batch).detach(), "has no gradient"),
        (lambda model, batch: torch.ones(1, requires_grad=True).sum(), "does not depend on the model"),
    ],
    ids=["float", "none", "vector", "detached", "of something else"],
)
def test_loss_that_cannot_be_trained_on_is_named(loss: Callable[[nn.Module, Any], Any], message: str) -> None:
    error, _ = join_failed(configure(numbered_samples(64), devices=["cpu"], train_fn=loss))
    assert isinstance(error.__cause__, TrainFnError)
    with pytest.raises(TrainFnError, match=message):
        raise error.__cause__


# Numbers that are not finite


class NanOn:
    """A ``train_fn`` whose loss is NaN in one batch of one rank, or in all batches of all."""

    def __init__(self, rank: int | None, *, at: int | None) -> None:
        self.rank = rank
        self.at = at
        self.num_calls: dict[int, int] = {}

    def __call__(self, model: nn.Module, batch: Samples) -> Tensor:
        rank = rank_of_thread()
        count = self.num_calls[rank] = self.num_calls.get(rank, 0) + 1
        loss = mean_squared_error(model, batch)
        is_bad = self.rank in (None, rank) and self.at in (None, count)
        return loss * float("nan") if is_bad else loss


@every_way
def test_replica_that_is_once_not_finite_is_left_out_and_counted(policy: ApplyPolicy, backend: AverageBackend) -> None:
    builder = configure(
        numbered_samples(400), policy=policy, backend=backend, train_fn=NanOn(1, at=3), num_epochs=3
    ).anchor(3)
    outcome = train(builder)
    assert outcome.handle.status == "completed"
    assert torch.isfinite(as_vector(outcome.state)).all()
    totals = outcome.handle.progress().totals
    assert totals.num_samples == 1200
    assert 8 <= totals.discarded_samples < 1200


@every_local_way
def test_weights_and_discarded_samples_add_up_to_all_that_was_trained(
    policy: ApplyPolicy, backend: AverageBackend
) -> None:
    builder = configure(
        numbered_samples(1600), policy=policy, backend=backend, train_fn=NanOn(1, at=3), num_epochs=3
    ).anchor(3)
    outcome = train(builder)
    weights = sum(sum(event.weights.values()) for event in events_of(outcome, SyncEvent))
    assert weights + outcome.handle.progress().totals.discarded_samples == 4800


@pytest.mark.parametrize("policy", [ApplyPolicy.CADENCE, ApplyPolicy.ASYNC])
def test_what_a_rank_trains_while_it_is_left_out_is_discarded_too(
    monkeypatch: pytest.MonkeyPatch, policy: ApplyPolicy
) -> None:
    # it takes the mean whole: those batches are in nobody's parameters, and must not weigh in the next average
    nan_on = NanOn(1, at=3)
    excluding, has_trained_on = threading.Event(), threading.Event()
    entered: list[int] = []
    calls_at_entry = 0
    consensus = Averager.consensus

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        loss = nan_on(model, batch)
        if excluding.is_set() and nan_on.num_calls[1] >= calls_at_entry + 3:
            has_trained_on.set()
        return loss

    def slow_consensus(self: Averager, states: Any, terms: Tally) -> Any:
        nonlocal calls_at_entry
        if terms.excluded and not entered:
            calls_at_entry = nan_on.num_calls[1]
            entered.append(terms.discarded_samples)
            excluding.set()
            assert has_trained_on.wait(LIMIT_S)
        return consensus(self, states, terms)

    monkeypatch.setattr(Averager, "consensus", slow_consensus)
    outcome = train(configure(numbered_samples(1600), policy=policy, train_fn=train_fn).anchor(3))
    assert outcome.handle.progress().totals.discarded_samples >= entered[0] + 2 * 8


@every_way
def test_training_that_diverges_everywhere_is_a_clear_error(policy: ApplyPolicy, backend: AverageBackend) -> None:
    builder = configure(
        numbered_samples(400), policy=policy, backend=backend, train_fn=NanOn(None, at=None), num_epochs=3
    )
    error, _ = join_failed(builder)
    assert isinstance(error.__cause__, NonFiniteError)
    assert "finite" in str(error)


@every_way
def test_rank_that_is_never_finite_counts_as_failed(policy: ApplyPolicy, backend: AverageBackend) -> None:
    builder = configure(
        numbered_samples(8000), policy=policy, backend=backend, train_fn=NanOn(1, at=None), num_epochs=20
    ).anchor(2)
    outcome = join_degraded(builder, "diverged")
    assert torch.isfinite(as_vector(outcome.state)).all()


@every_way
def test_run_stops_at_the_first_replica_that_is_not_finite_where_asked(
    policy: ApplyPolicy, backend: AverageBackend
) -> None:
    builder = configure(numbered_samples(4000), policy=policy, backend=backend, train_fn=NanOn(1, at=3), num_epochs=20)
    outcome = join_degraded(builder.on_nonfinite("stop"), "not finite")
    assert torch.isfinite(as_vector(outcome.state)).all()
    assert isinstance(outcome.handle.failures[0].error, NonFiniteError)


@pytest.mark.parametrize("on_nonfinite", ["exclude", "stop"])
def test_single_device_that_diverges_is_a_clear_error(on_nonfinite: str) -> None:
    builder = configure(numbered_samples(400), devices=["cpu"], train_fn=NanOn(0, at=3))
    error, _ = join_failed(builder.on_nonfinite(on_nonfinite))
    assert isinstance(error.__cause__, NonFiniteError)


# Models


def test_model_without_parameters_is_refused_before_anything_starts() -> None:
    with pytest.raises(ModelError, match="no trainable parameter"):
        configure(numbered_samples(8), model_factory=lambda device: nn.ReLU()).run()


def test_lazy_model_is_refused_with_the_way_out() -> None:
    with pytest.raises(ModelError, match="run a batch through the model in model_factory"):
        configure(numbered_samples(8), model_factory=lambda device: nn.LazyLinear(1)).run()


def test_model_factory_that_returns_no_model_is_refused() -> None:
    builder = Ddp.builder(lambda device: "model", sgd, mean_squared_error)  # type: ignore[arg-type,return-value]  # on purpose
    with pytest.raises(ConfigError, match="not str"):
        builder.dataset(numbered_samples(8)).batch_size(4).num_epochs(1).run()


@every_way
def test_model_factory_that_builds_unlike_models_is_named(policy: ApplyPolicy, backend: AverageBackend) -> None:
    widths = iter(range(4, 100))

    def growing(device: torch.device) -> nn.Module:
        return nn.Linear(4, next(widths))

    error, _ = join_failed(configure(numbered_samples(64), policy=policy, backend=backend, model_factory=growing))
    assert isinstance(error.__cause__, ModelError)
    assert "weight has shape" in str(error)


@every_way
def test_optim_factory_that_raises_fails_the_run(policy: ApplyPolicy, backend: AverageBackend) -> None:
    def no_optimizer(params: Any) -> torch.optim.Optimizer:
        raise CrashError("no such optimizer")

    error, _ = join_failed(configure(numbered_samples(64), policy=policy, backend=backend, optim_factory=no_optimizer))
    assert isinstance(error.__cause__, CrashError)


# Callbacks


@every_way
@pytest.mark.parametrize("name", ["eval_fn", "metrics_fn"])
@pytest.mark.parametrize("epoch", [0, 1], ids=["first epoch", "last epoch"])
def test_callback_that_raises_fails_the_run(
    policy: ApplyPolicy, backend: AverageBackend, name: str, epoch: int
) -> None:
    # in the last epoch it is called when the workers have ended, or nearly
    num_calls = 0

    def callback(_: object) -> dict[str, float]:
        nonlocal num_calls
        num_calls += 1
        if num_calls > epoch:
            raise CrashError("the callback is broken")
        return {}

    builder = configure(numbered_samples(64), policy=policy, backend=backend)
    error, handle = join_failed(getattr(builder, name)(callback))
    assert isinstance(error.__cause__, CrashError)
    assert "the callback is broken" in str(error)
    check_told_as_failed(handle)


def check_told_as_failed(handle: DdpHandle) -> None:
    """The last event says what ``join`` does."""
    last = list(handle.events())[-1]
    assert isinstance(last, RunEnded)
    assert last.status == "failed"


@every_way
def test_epoch_fn_that_raises_fails_the_run(policy: ApplyPolicy, backend: AverageBackend) -> None:
    all_there = threading.Barrier(2)

    def epoch_fn(epoch: int, worker: WorkerContext) -> None:
        all_there.wait(LIMIT_S)
        raise CrashError("the callback is broken")

    error, handle = join_failed(configure(numbered_samples(64), policy=policy, backend=backend).epoch_fn(epoch_fn))
    assert isinstance(error.__cause__, CrashError)
    check_told_as_failed(handle)


@every_way
def test_epoch_fn_may_not_change_what_is_trained(policy: ApplyPolicy, backend: AverageBackend) -> None:
    all_there = threading.Barrier(2)

    def freeze(epoch: int, worker: WorkerContext) -> None:
        all_there.wait(LIMIT_S)
        worker.model.requires_grad_(False)

    error, _ = join_failed(configure(numbered_samples(64), policy=policy, backend=backend).epoch_fn(freeze))
    assert isinstance(error.__cause__, ModelError)


def test_eval_fn_that_casts_the_model_is_an_error_and_no_hang() -> None:
    error, handle = join_failed(
        configure(numbered_samples(64), num_epochs=1).eval_fn(lambda model: {"x": len(list(model.double().buffers()))})
    )
    assert isinstance(error.__cause__, ModelError)
    check_told_as_failed(handle)


def test_callback_that_raises_after_the_workers_have_ended_is_not_lost() -> None:
    workers_ended = threading.Event()

    def metrics_fn(metrics: EpochMetrics) -> None:
        assert workers_ended.wait(LIMIT_S)
        raise CrashError("too late to stop anything")

    builder = configure(numbered_samples(16), num_epochs=1)
    handle = builder.metrics_fn(metrics_fn).run()
    for thread in threading.enumerate():
        if thread.name.startswith("ddp-worker-"):
            thread.join(LIMIT_S)
    workers_ended.set()
    with handle, pytest.raises(WorkerError, match="too late"):
        handle.join(LIMIT_S)
    assert handle.status == "failed"


@every_way
@pytest.mark.parametrize("at", [1, 3])
def test_averaging_that_fails_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, policy: ApplyPolicy, backend: AverageBackend, at: int
) -> None:
    num_calls = 0

    def break_from(method: str) -> None:
        average = getattr(Averager, method)

        def broken(self: Averager, *args: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            if num_calls >= at:
                raise CrashError("out of memory")
            return average(self, *args)

        monkeypatch.setattr(Averager, method, broken)

    for method in ("average", "average_in_place", "consensus", "consensus_in_place"):
        break_from(method)
    builder = configure(numbered_samples(800), policy=policy, backend=backend, num_epochs=5).anchor(2)
    error, _ = join_failed(builder)
    assert "out of memory" in str(error)


# The caller


def test_join_gives_up_after_its_limit_and_may_be_called_again() -> None:
    go_on = threading.Event()

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        assert go_on.wait(LIMIT_S)
        return mean_squared_error(model, batch)

    with configure(numbered_samples(32), train_fn=train_fn).run() as handle:
        with pytest.raises(TimeoutError, match="cancel"):
            handle.join(0.01)
        go_on.set()
        assert torch.isfinite(as_vector(handle.join(LIMIT_S))).all()


def test_model_that_is_trained_is_the_factorys_own() -> None:
    models: list[nn.Module] = []

    def factory(device: torch.device) -> nn.Module:
        models.append(linear(device))
        return models[-1]

    outcome = finish(configure(numbered_samples(32), model_factory=factory).run())
    assert len(models) == 3  # each rank's, and one to start from
    assert any(
        torch.equal(as_vector(outcome.state)[:4], m.get_parameter("weight")[0].detach().double()) for m in models
    )


def test_backends_under_test_are_those_that_run_on_the_cpu() -> None:
    assert {*BACKENDS} == {*AverageBackend} - {AverageBackend.NCCL}
