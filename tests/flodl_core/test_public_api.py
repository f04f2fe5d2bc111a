"""What a user sees: the builder's checks, metrics, events, callbacks, datasets and the trained state."""

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import flodl_core
from flodl_core import (
    AnchorChanged,
    ApplyPolicy,
    AverageBackend,
    ConfigError,
    DatasetError,
    Ddp,
    DdpBuilder,
    EpochEnded,
    FlodlError,
    RunEnded,
    RunStarted,
    StateError,
    StepWindow,
    SyncEvent,
    TrainedState,
    WorkerContext,
    WorkerSpec,
    record_scalar,
)
from tests.flodl_core.models import Tied, ZooModel
from tests.flodl_core.training import (
    LIMIT_S,
    LR,
    Samples,
    as_vector,
    configure,
    events_of,
    every_local_way,
    every_way,
    linear,
    mean_squared_error,
    numbered_samples,
    sgd,
    train,
)


def new_builder() -> DdpBuilder:
    return Ddp.builder(linear, sgd, mean_squared_error)


# The builder


@pytest.mark.parametrize(
    ("method", "value", "allowed"),
    [
        ("batch_size", 0, "at least 1"),
        ("batch_size", 2.5, "integer"),
        ("batch_size", True, "integer"),
        ("num_epochs", -1, "at least 1"),
        ("anchor", 0, "at least 1"),
        ("max_anchor", 0, "at least 1"),
        ("max_batch_diff", -1, "at least 0"),
        ("max_overshoot", -1, "from 0 to 1000"),
        ("max_overshoot", 1001, "from 0 to 1000"),
        ("overhead_target", 0.0, "above 0"),
        ("overhead_target", "much", "number"),
        ("snapshot_timeout_s", 0, "above 0"),
        ("snapshot_timeout_s", math.inf, "number"),
        ("worker_timeout_s", 0, "above 0"),
        ("worker_timeout_s", math.nan, "number"),
        ("on_worker_failure", "go on", "must be stop"),
        ("max_grad_norm", -1.0, "above 0"),
        ("max_grad_norm", math.nan, "number"),
        ("lr_scale_ratio", -0.1, "at least 0"),
        ("seed", -1, "from 0 to"),
        ("seed", 2**63, "from 0 to"),
        ("policy", "often", "sync, cadence, async"),
        ("backend", "mpi", "nccl, gloo, cpu"),
        ("on_nonfinite", "ignore", "exclude, stop"),
        ("epoch_fn", 1, "callable"),
        ("eval_fn", "accuracy", "callable"),
        ("metrics_fn", None, "callable"),
        ("scheduler", 0.1, "callable"),
        ("collate_fn", [], "callable"),
        ("devices", [], "at least one"),
        ("devices", [3], "string"),
        ("devices", "tpu", "cpu or cuda"),
        ("devices", "cpu@0.5", "from 1 to 1000"),
        ("devices", "cpu@fast", "from 1 to 1000"),
        ("devices", "@2", "cpu@2.5"),
    ],
)
def test_bad_value_is_refused_at_once_with_what_would_do(method: str, value: object, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(new_builder(), method)(value)
    assert isinstance(caught.value, ValueError)
    assert allowed in str(caught.value)
    if method != "devices":
        assert method in str(caught.value)
        names_value = repr(value) in str(caught.value) or type(value).__name__ in str(caught.value)
        assert names_value


@pytest.mark.parametrize("missing", ["dataset", "batch_size", "num_epochs"])
def test_missing_value_is_asked_for_by_its_method(missing: str) -> None:
    builder = new_builder()
    for method, value in {"dataset": numbered_samples(8), "batch_size": 4, "num_epochs": 1}.items():
        if method != missing:
            getattr(builder, method)(value)
    with pytest.raises(ConfigError, match=rf"call \.{missing}\("):
        builder.run()


@pytest.mark.parametrize("position", range(3))
def test_factories_must_be_callable(position: int) -> None:
    arguments: list[Any] = [linear, sgd, mean_squared_error]
    arguments[position] = 7
    with pytest.raises(ConfigError, match="must be callable, not int"):
        Ddp.builder(*arguments)


def test_values_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_anchor \(3\) must be at least anchor \(5\)"):
        configure(numbered_samples(8)).anchor(5).max_anchor(3).run()
    with pytest.raises(ConfigError, match="drop_last leaves nothing"):
        configure(numbered_samples(8)).batch_size(9).drop_last().run()
    with pytest.raises(ConfigError, match="nccl needs CUDA devices"):
        configure(numbered_samples(8), backend=AverageBackend.NCCL).run()


def test_overhead_target_is_clamped() -> None:
    for asked, used in ((0.001, 0.01), (0.2, 0.2), (3, 0.5)):
        handle = train(configure(numbered_samples(16)).overhead_target(asked)).handle
        assert handle.training_meta["overhead_target"] == used


def test_everything_exported_exists_and_errors_are_of_one_tree() -> None:
    assert all(hasattr(flodl_core, name) for name in flodl_core.__all__)
    errors = [getattr(flodl_core, name) for name in flodl_core.__all__ if name.endswith("Error")]
    assert all(issubclass(error, FlodlError) for error in errors)
    assert [*flodl_core.__all__] == sorted(flodl_core.__all__)


# Handle, metrics


@every_way
def test_metrics_tell_all_of_an_epoch(policy: ApplyPolicy, backend: AverageBackend) -> None:
    outcome = train(configure(numbered_samples(203), policy=policy, backend=backend, devices=["cpu", "cpu@2"]))
    assert [metrics.epoch for metrics in outcome.metrics] == [0, 1]
    for metrics in outcome.metrics:
        assert metrics.num_samples == 203
        assert metrics.num_batches == 26
        assert metrics.epoch_ms > 0
        assert metrics.capacity_efficiency > 0
        assert metrics.devices == ("cpu", "cpu@2")
        assert metrics.lr == pytest.approx(LR)
        assert sum(metrics.per_rank_batch_share) == pytest.approx(1)
        for by_rank in (metrics.per_rank, metrics.per_rank_loss, metrics.per_rank_throughput, metrics.per_rank_busy_ms):
            assert len(by_rank) == 2
        assert metrics.eval == {}
    assert outcome.metrics[1].avg_loss < outcome.metrics[0].avg_loss


@every_way
def test_average_loss_is_the_mean_over_samples(policy: ApplyPolicy, backend: AverageBackend) -> None:
    # the loss of a batch is the mean of its samples' numbers: their mean over the epoch is known, whoever trains which
    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        nothing: Tensor = 0.0 * model(batch[0]).sum()
        return batch[2].to(torch.float32).mean() + nothing

    outcome = train(configure(numbered_samples(203), policy=policy, backend=backend, train_fn=train_fn))
    assert [metrics.avg_loss for metrics in outcome.metrics] == [pytest.approx(101.0, rel=1e-5)] * 2


def test_each_epoch_is_read_once() -> None:
    handle = configure(numbered_samples(64), num_epochs=4).run()
    first = handle.next_metrics(LIMIT_S)
    assert first is not None
    rest = list(handle.metrics())
    assert [metrics.epoch for metrics in (first, *rest)] == [0, 1, 2, 3]
    assert (handle.next_metrics(), handle.poll_metrics(), list(handle.metrics())) == (None, [], [])
    handle.join(LIMIT_S)


def test_metrics_are_not_waited_for_beyond_the_limit() -> None:
    go_on = threading.Event()

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        assert go_on.wait(LIMIT_S)
        return mean_squared_error(model, batch)

    with configure(numbered_samples(16), train_fn=train_fn).run() as handle:
        assert handle.next_metrics(0.001) is None
        assert handle.poll_metrics() == []
        assert handle.status == "running"
        go_on.set()
        handle.join(LIMIT_S)


def test_progress_is_exact_at_the_end() -> None:
    handle = train(configure(numbered_samples(64), num_epochs=3)).handle
    progress = handle.progress()
    assert (progress.epoch, progress.num_epochs, progress.epoch_size) == (3, 3, 64)
    assert progress.totals.num_samples == 192 == sum(progress.totals.rank_samples)
    assert progress.totals.num_batches == 24 == sum(progress.totals.rank_batches)
    assert progress.totals.wall_s > 0
    assert progress.num_syncs > 0


def test_run_tells_how_it_was_set_up() -> None:
    handle = train(configure(numbered_samples(64), devices=["cpu", WorkerSpec("cpu", 1.5)]).seed(9)).handle
    assert handle.world_size == 2
    assert handle.devices == ("cpu", "cpu@1.5")
    meta = handle.training_meta
    assert (meta["mode"], meta["policy"], meta["backend"], meta["seed"]) == ("ddp", "cadence", "cpu", 9)
    assert meta["num_samples"] == 64


@every_way
def test_single_device_has_the_same_interface(policy: ApplyPolicy, backend: AverageBackend) -> None:
    outcome = train(
        configure(numbered_samples(60), policy=policy, backend=backend, devices=["cpu"]).eval_fn(lambda model: {"a": 1})
    )
    assert outcome.handle.training_meta["mode"] == "single-device"
    assert [metrics.num_samples for metrics in outcome.metrics] == [60, 60]
    assert [metrics.eval for metrics in outcome.metrics] == [{"a": 1.0}] * 2
    assert [type(event) for event in outcome.events if not isinstance(event, StepWindow)] == [
        RunStarted,
        EpochEnded,
        EpochEnded,
        RunEnded,
    ]
    assert outcome.handle.progress().num_syncs == 0


@every_way
def test_three_unlike_devices_share_the_work(policy: ApplyPolicy, backend: AverageBackend) -> None:
    devices = ["cpu", "cpu@2", "cpu@4"]
    outcome = train(configure(numbered_samples(403), policy=policy, backend=backend, devices=devices))
    assert outcome.handle.progress().totals.num_samples == 806
    assert min(outcome.handle.progress().totals.rank_samples) > 0


# Events


@every_way
def test_events_come_in_order(policy: ApplyPolicy, backend: AverageBackend) -> None:
    outcome = train(configure(numbered_samples(203), policy=policy, backend=backend, num_epochs=3))
    events = outcome.events
    assert isinstance(events[0], RunStarted)
    assert (events[0].devices, events[0].num_epochs, events[0].num_samples) == (("cpu", "cpu"), 3, 203)
    assert isinstance(events[-1], RunEnded)
    assert events[-1].status == "completed"
    assert sum(isinstance(event, RunStarted | RunEnded) for event in events) == 2
    times = [event.time_s for event in events]
    assert times == sorted(times)
    assert [event.epoch for event in events_of(outcome, EpochEnded)] == [0, 1, 2]
    steps = [event.global_step for event in events if isinstance(event, SyncEvent | EpochEnded)]
    assert steps[-1] == events[-1].global_step
    windows = events_of(outcome, StepWindow)
    assert sum(window.num_samples for window in windows) == 609
    assert sum(window.num_batches for window in windows) == events[-1].global_step
    assert all(math.isfinite(window.loss) and window.lr == pytest.approx(LR) for window in windows)


@every_local_way
def test_averages_are_numbered_without_gaps(policy: ApplyPolicy, backend: AverageBackend) -> None:
    outcome = train(configure(numbered_samples(403), policy=policy, backend=backend, num_epochs=3).anchor(2))
    syncs = events_of(outcome, SyncEvent)
    assert [event.round for event in syncs] == list(range(len(syncs)))
    assert [event.epoch for event in syncs if event.epoch is not None] == [0, 1, 2]
    assert syncs[-1].epoch == 2
    steps = [event.global_step for event in syncs]
    assert steps == sorted(steps)
    for event in syncs:
        assert set(event.weights) == {0, 1} == set(event.divergence)
        assert event.duration_ms >= 0
        assert event.num_syncs == 1
    assert outcome.handle.progress().num_syncs == len(syncs)
    for change in events_of(outcome, AnchorChanged):
        assert change.before != change.after >= 2


# Scalars


@every_way
def test_recorded_scalars_are_averaged_over_batches(policy: ApplyPolicy, backend: AverageBackend) -> None:
    lock = threading.Lock()
    recorded: list[float] = []

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        value = float(batch[2].sum())
        with lock:
            recorded.append(value)
        record_scalar("number", torch.tensor(value))
        record_scalar("two", 2)
        return mean_squared_error(model, batch)

    outcome = train(configure(numbered_samples(203), policy=policy, backend=backend, train_fn=train_fn, num_epochs=1))
    scalars = outcome.metrics[0].scalars
    assert scalars["two"] == 2.0
    assert scalars["number"] == pytest.approx(sum(recorded) / len(recorded))
    assert all(set(by_rank) <= {"number", "two"} for by_rank in outcome.metrics[0].per_rank)


def test_scalar_outside_of_train_fn_is_refused() -> None:
    with pytest.raises(FlodlError, match="only inside train_fn"):
        record_scalar("loss", 1.0)


def test_scalar_of_many_elements_is_refused() -> None:
    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        with pytest.raises(ValueError, match=r"'norms' must have one element, not shape \(3,\)"):
            record_scalar("norms", torch.ones(3))
        return mean_squared_error(model, batch)

    train(configure(numbered_samples(16), train_fn=train_fn))


# Learning rate


@every_way
def test_schedule_runs_forward_within_the_run(policy: ApplyPolicy, backend: AverageBackend) -> None:
    num_samples, num_epochs = 203, 3
    positions: dict[str, list[int]] = {}

    def factory(world_size: int) -> Callable[[int], float]:
        assert world_size == 2

        def schedule(position: int) -> float:
            positions.setdefault(threading.current_thread().name, []).append(position)
            return 1.0

        return schedule

    outcome = train(
        configure(
            numbered_samples(num_samples),
            policy=policy,
            backend=backend,
            devices=["cpu", "cpu@3"],
            num_epochs=num_epochs,
        )
        .scheduler(factory)
        .anchor(3)
    )
    total = outcome.handle.progress().totals.num_batches
    assert len(positions) == 2
    for seen in positions.values():
        assert seen == sorted(seen)
        assert 0 <= seen[0] <= seen[-1] < total


def test_schedule_and_scale_make_the_learning_rate() -> None:
    builder = configure(numbered_samples(64), policy=ApplyPolicy.SYNC, num_epochs=1).lr_scale_ratio(0.5)
    outcome = train(builder.scheduler(lambda world_size: lambda position: 0.1 if position >= 4 else 1.0))
    assert outcome.handle.training_meta["lr_scale"] == 1.5
    assert outcome.metrics[0].lr == pytest.approx(LR * 1.5 * 0.1)


def test_scale_of_the_learning_rate_is_not_written_into_what_the_user_built() -> None:
    outcome = train(configure(numbered_samples(64)).lr_scale_ratio(1.0))
    assert outcome.metrics[-1].lr == pytest.approx(2 * LR)


def test_worker_offers_its_learning_rate_inside_epoch_fn() -> None:
    seen: list[float] = []

    def epoch_fn(epoch: int, worker: WorkerContext) -> None:
        if epoch == 0:
            worker.set_lr(0.01)
        elif epoch == 1:
            worker.scale_lr(0.5)
        elif epoch == 2:
            worker.set_lr_scale(4.0)
        else:
            worker.set_scheduler(lambda position: 0.1)
        seen.append(worker.current_lr)

    outcome = train(configure(numbered_samples(16), devices=["cpu"], num_epochs=4).epoch_fn(epoch_fn))
    expected = [pytest.approx(lr) for lr in (0.01, 0.005, 0.02, 0.002)]
    assert seen == expected
    assert [metrics.lr for metrics in outcome.metrics] == expected


@every_way
def test_worker_knows_where_it_is(policy: ApplyPolicy, backend: AverageBackend) -> None:
    seen: dict[int, list[tuple[int, int, int]]] = {0: [], 1: []}

    def epoch_fn(epoch: int, worker: WorkerContext) -> None:
        assert worker.current_epoch == epoch
        assert worker.device == torch.device("cpu")
        assert isinstance(worker.model, nn.Linear)
        seen[worker.rank].append((epoch, worker.local_step, worker.current_version))

    train(configure(numbered_samples(160), policy=policy, backend=backend, num_epochs=3).epoch_fn(epoch_fn))
    for calls in seen.values():
        assert [epoch for epoch, _, _ in calls] == [0, 1, 2]
        assert calls[0][1:] == (0, 0)
        assert [step for _, step, _ in calls] == sorted(step for _, step, _ in calls)
        assert [version for _, _, version in calls] == sorted(version for _, _, version in calls)
        assert calls[-1][2] > 0


def test_learning_rate_may_be_a_tensor_and_groups_keep_theirs() -> None:
    rates: list[list[float]] = []

    def optimizer(model: nn.Linear) -> torch.optim.Optimizer:
        groups = [{"params": [model.weight], "lr": torch.tensor(0.1)}, {"params": [model.bias], "lr": 0.02}]
        made = SGD(groups)
        made.register_step_pre_hook(lambda *_: rates.append([float(group["lr"]) for group in made.param_groups]))
        return made

    builder = configure(numbered_samples(16), devices=["cpu"], optim_factory=optimizer, num_epochs=1)
    train(builder.scheduler(lambda world_size: lambda position: 0.5))
    assert rates == [[pytest.approx(0.05), pytest.approx(0.01)]] * 2


# Evaluation


@every_way
def test_average_is_evaluated_after_every_epoch(policy: ApplyPolicy, backend: AverageBackend) -> None:
    samples = numbered_samples(160)
    vectors: list[Tensor] = []

    def eval_fn(model: nn.Module) -> dict[str, float]:
        vectors.append(torch.cat([param.detach().reshape(-1).double().clone() for param in model.parameters()]))
        with torch.no_grad():
            return {"loss": F.mse_loss(model(samples[0]), samples[1]).item()}

    outcome = train(configure(samples, policy=policy, backend=backend, num_epochs=3).eval_fn(eval_fn))
    assert len(vectors) == 3
    assert torch.equal(vectors[-1], as_vector(outcome.state))
    losses = [metrics.eval["loss"] for metrics in outcome.metrics]
    assert losses[2] < losses[0]
    trained = linear(torch.device("cpu"))
    outcome.state.load_into(trained)
    assert F.mse_loss(trained(samples[0]), samples[1]).item() == pytest.approx(losses[-1])


@every_way
def test_metrics_fn_sees_every_epoch_in_order_with_its_evaluation(policy: ApplyPolicy, backend: AverageBackend) -> None:
    seen: list[tuple[int, float]] = []
    builder = configure(numbered_samples(64), policy=policy, backend=backend, num_epochs=4)
    builder.eval_fn(lambda model: {"half": 0.5}).metrics_fn(lambda m: seen.append((m.epoch, m.eval["half"])))
    train(builder)
    assert seen == [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5)]


# The trained state


def zoo_loss(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = model(batch)
    return loss


def train_zoo() -> TrainedState:
    images = torch.randn(48, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    return train(configure(images, model_factory=lambda device: ZooModel().to(device), train_fn=zoo_loss)).state


def test_state_holds_parameters_and_buffers_apart() -> None:
    state = train_zoo()
    assert set(state.params) == {name for name, _ in ZooModel().named_parameters()}
    assert set(state.buffers) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert all(tensor.device.type == "cpu" and not tensor.requires_grad for tensor in state.state_dict().values())


def test_state_comes_back_from_its_file_bit_for_bit(tmp_path: Path) -> None:
    state = train_zoo()
    state.save(tmp_path / "state.safetensors")
    loaded = TrainedState.load(tmp_path / "state.safetensors")
    assert list(loaded.params) == list(state.params)
    assert list(loaded.buffers) == list(state.buffers)
    for name, tensor in state.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    model = ZooModel()
    model.load_state_dict(loaded.state_dict(), strict=True)
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]


def test_tied_parameter_is_saved_under_every_name_and_loads_strictly(tmp_path: Path) -> None:
    tokens = torch.randint(0, 6, (40, 2), generator=torch.Generator().manual_seed(1))

    def train_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return F.cross_entropy(model(batch[:, 0]), batch[:, 1])

    state = train(configure(tokens, model_factory=lambda device: Tied().to(device), train_fn=train_fn)).state
    assert torch.equal(state.params["embed.weight"], state.params["head.weight"])
    assert state.params["embed.weight"].data_ptr() != state.params["head.weight"].data_ptr()
    state.save(tmp_path / "state.safetensors")
    model = Tied()
    TrainedState.load(tmp_path / "state.safetensors").load_into(model)
    assert torch.equal(model.head.weight, state.params["head.weight"])
    assert model.head.weight is model.embed.weight


def test_state_that_does_not_fit_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="does not fit"):
        train_zoo().load_into(nn.Linear(2, 2))
    with pytest.raises(StateError, match="cannot be read"):
        TrainedState.load(tmp_path / "missing.safetensors")
    torn = tmp_path / "torn.safetensors"
    train_zoo().save(torn)
    torn.write_bytes(torn.read_bytes()[:-7])
    with pytest.raises(StateError, match="cannot be read"):
        TrainedState.load(torn)


# Datasets


class Pair(NamedTuple):
    inputs: Tensor
    targets: Tensor


class Rows(Dataset[Any]):
    def __init__(self, samples: Samples, make: Callable[[Tensor, Tensor], Any]) -> None:
        self._samples = samples
        self._make = make

    def __len__(self) -> int:
        return len(self._samples[0])

    def __getitem__(self, index: int) -> Any:
        return self._make(self._samples[0][index], self._samples[1][index])


class Batches:
    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples[0])

    def get_batch(self, indices: Tensor) -> dict[str, Any]:
        assert indices.dtype == torch.int64
        assert indices.dim() == 1
        return {"x": self._samples[0][indices], "y": [self._samples[1][indices]], "note": "kept"}


DATASETS: dict[str, tuple[Callable[[Samples], object], Callable[[Any], tuple[Tensor, Tensor]]]] = {
    "tensors": (lambda s: (s[0], s[1]), lambda b: (b[0], b[1])),
    "dict": (lambda s: {"x": s[0], "y": s[1]}, lambda b: (b["x"], b["y"])),
    "named tuple": (lambda s: Pair(s[0], s[1]), lambda b: (b.inputs, b.targets)),
    "tensor": (lambda s: torch.cat([s[0], s[1]], 1), lambda b: (b[:, :4], b[:, 4:])),
    "tensor dataset": (lambda s: TensorDataset(s[0], s[1]), lambda b: (b[0], b[1])),
    "rows of tuples": (lambda s: Rows(s, lambda x, y: (x, y)), lambda b: (b[0], b[1])),
    "rows of dicts": (lambda s: Rows(s, lambda x, y: {"x": x, "y": y}), lambda b: (b["x"], b["y"])),
    "list": (lambda s: list(zip(s[0], s[1], strict=True)), lambda b: (b[0], b[1])),
    "batches": (Batches, lambda b: (b["x"], b["y"][0])),
}


def train_on(kind: str, *, policy: ApplyPolicy) -> Tensor:
    make, unpack = DATASETS[kind]

    def train_fn(model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = unpack(batch)
        return F.mse_loss(model(inputs), targets)

    return as_vector(train(configure(make(numbered_samples(53)), policy=policy, train_fn=train_fn)).state)


@pytest.mark.parametrize("kind", DATASETS)
def test_every_kind_of_dataset_trains_alike(kind: str) -> None:
    expected = train_on("tensors", policy=ApplyPolicy.SYNC)
    torch.testing.assert_close(train_on(kind, policy=ApplyPolicy.SYNC), expected)
    assert torch.isfinite(train_on(kind, policy=ApplyPolicy.CADENCE)).all()


@every_way
def test_collate_fn_joins_samples_one_batch_ahead(policy: ApplyPolicy, backend: AverageBackend) -> None:
    threads: set[str] = set()

    def collate(rows: list[Any]) -> Pair:
        threads.add(threading.current_thread().name)
        return Pair(torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows]))

    def train_fn(model: nn.Module, batch: Pair) -> Tensor:
        return F.mse_loss(model(batch.inputs), batch.targets)

    rows = Rows(numbered_samples(160), lambda x, y: (x, y))
    outcome = train(
        configure(rows, policy=policy, backend=backend, train_fn=train_fn, num_epochs=1).collate_fn(collate)
    )
    assert outcome.handle.progress().totals.num_samples == 160
    assert any(name.startswith("ddp-loader-") for name in threads)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([], "empty"),
        (torch.zeros(0, 3), "empty"),
        (torch.tensor(3.0), "empty"),
        ((torch.zeros(3), torch.zeros(4)), "same first dimension"),
        (Stream(), "map-style"),
        (object(), "get_batch or __getitem__"),
        ({}, "empty"),
    ],
)
def test_dataset_that_cannot_be_trained_on_is_refused(dataset: object, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        configure(dataset).run()
