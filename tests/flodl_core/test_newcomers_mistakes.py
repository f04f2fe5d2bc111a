"""What people get wrong at first, and what they are told."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl_core import (
    CosineScheduler,
    DatasetError,
    Ddp,
    DdpBuilder,
    DdpHandle,
    FlodlError,
    Timeline,
    WorkerContext,
    WorkerError,
    WorkerFailureWarning,
    record_scalar,
)
from tests.flodl_core.training import LIMIT_S

INPUTS = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS.sum(dim=1, keepdim=True)


def _model(device: torch.device) -> nn.Module:
    return nn.Linear(4, 1, device=device)


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def _builder(
    model: Callable[[torch.device], nn.Module] = _model,
    optimizer: Callable[[Any], Any] = lambda params: torch.optim.SGD(params, lr=0.01),
    dataset: object = (INPUTS, TARGETS),
) -> DdpBuilder:
    builder = Ddp.builder(model, optimizer, _loss).dataset(dataset)
    return builder.batch_size(4).num_epochs(2).devices(["cpu", "cpu"]).backend("cpu")


def test_one_model_shared_by_all_replicas_is_refused() -> None:
    shared = _model(torch.device("cpu"))
    with pytest.raises(WorkerError, match="must build a new model each time it is called: weight is shared"):
        _builder(lambda device: shared).run().join()


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda params: None, "optim_factory must return a torch.optim.Optimizer, not NoneType"),
        (lambda params: torch.optim.LBFGS(params), "use another optimizer"),
    ],
)
def test_optimizer_that_cannot_be_stepped_is_refused(optimizer: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(WorkerError, match=message):
        _builder(optimizer=optimizer).run().join()


class _WithoutRate(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"pace": 0.1})


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda params: torch.optim.SGD(nn.Linear(4, 1).parameters(), lr=0.01), "must make a new optimizer"),
        (lambda params: torch.optim.SGD([*params, nn.Parameter(torch.zeros(1))], lr=0.01), "part of the model"),
        (_WithoutRate, "groups must have a learning rate as lr, not None"),
        (zip, "optim_factory must return a torch.optim.Optimizer, not zip"),
    ],
)
def test_optimizer_that_would_step_something_else_is_refused(optimizer: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(WorkerError, match=message):
        _builder(optimizer=optimizer).run().join(LIMIT_S)


def test_optimizer_shared_by_replicas_is_refused() -> None:
    made: list[torch.optim.Optimizer] = []

    def one_for_all(params: Any) -> torch.optim.Optimizer:
        made.append(torch.optim.SGD(params, lr=0.01))
        return made[0]

    with pytest.warns(WorkerFailureWarning, match="the optimizer holds a parameter that is not the model's"):
        _builder(optimizer=one_for_all).run().join(LIMIT_S)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (CosineScheduler(total=10), r"lambda world_size: CosineScheduler\(total=1000\); what it got returned 0.9"),
        (lambda world_size: 0.5, "what it got returned 0.5"),
        (lambda world_size: lambda position: float("nan"), "the schedule gave nan at position 0: a factor"),
        (lambda world_size: lambda position: -1.0, "the schedule gave -1.0 at position 0"),
        (lambda world_size: lambda position: "fast", "the schedule gave 'fast' at position 0"),
        (lambda world_size: lambda position: None, "the schedule gave None at position 0"),
        (lambda world_size: lambda position: torch.ones(2), "the schedule gave tensor"),
    ],
)
def test_schedule_that_gives_no_factor_is_refused(factory: Any, message: str) -> None:
    with pytest.raises(WorkerError, match=message):
        _builder().scheduler(factory).run().join(LIMIT_S)


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("set_lr", float("nan"), "lr must be a finite number at least 0, not nan"),
        ("scale_lr", "x", "factor must be a finite number at least 0, not 'x'"),
        ("set_lr_scale", -1, "scale must be a finite number at least 0, not -1"),
        ("set_scheduler", 0.5, "schedule must be callable, not float"),
    ],
)
def test_worker_refuses_a_learning_rate_that_is_none(method: str, value: object, message: str) -> None:
    def begin_epoch(epoch: int, worker: WorkerContext) -> None:
        getattr(worker, method)(value)

    with pytest.raises(WorkerError, match=message):
        _builder().epoch_fn(begin_epoch).run().join(LIMIT_S)


class _NegativeLength:
    def __len__(self) -> int:
        return -3

    def __getitem__(self, index: int) -> Tensor:
        raise AssertionError("never read")


class _EndlessLength(_NegativeLength):
    def __len__(self) -> int:
        return 2**80


class _HalfLength(_NegativeLength):
    def __len__(self) -> int:
        return 1.5  # type: ignore[return-value]  # the mistake


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("cifar10", "a dataset must be data, not 'cifar10': load it first"),
        (_EndlessLength(), "the length of the dataset is no length: cannot fit 'int'"),
        (_HalfLength(), "the length of the dataset is no length: 'float' object cannot be interpreted"),
        ([INPUTS, TARGETS], "a short list of long tensors: give a tuple"),
        ((INPUTS.numpy(), TARGETS.numpy()), r"a tuple as dataset must hold tensors .* not \['ndarray'\]"),
        ({"x": INPUTS.numpy()}, r"a dict as dataset must hold tensors .* not \['ndarray'\]"),
        (_NegativeLength(), "the length of the dataset is no length"),
    ],
)
def test_dataset_that_would_be_misread_is_refused(dataset: object, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        _builder(dataset=dataset).run()


class _TooLong:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index >= 32:
            raise IndexError(index)
        return INPUTS[index], TARGETS[index]


def test_dataset_that_claims_more_samples_than_it_has_is_named() -> None:
    with pytest.raises(WorkerError, match="though its length says so"):
        _builder(dataset=_TooLong()).devices(["cpu"]).run().join()


class _Shrinking:
    """Says another length each time it is asked."""

    def __init__(self) -> None:
        self.length = 33

    def __len__(self) -> int:
        self.length -= 1
        return self.length

    def get_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return INPUTS[indices], TARGETS[indices]


def test_length_is_asked_for_once() -> None:
    handle = _builder(dataset=_Shrinking()).num_epochs(1).run()
    handle.join()
    assert handle.progress().totals.num_samples == handle.training_meta["num_samples"]


def test_callers_intra_op_threads_stay_as_they_were() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        _builder().run().join()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("callback", ["eval_fn", "metrics_fn"])
@pytest.mark.parametrize("backend", ["gloo", "cpu"])
@pytest.mark.parametrize("num_epochs", [1, 3])
def test_error_of_a_callback_does_not_lose_what_was_trained(callback: str, backend: str, num_epochs: int) -> None:
    def fail(_: object) -> dict[str, float]:
        raise ValueError("bad callback")

    builder = getattr(_builder().backend(backend).num_epochs(num_epochs), callback)(fail)
    handle = builder.run()
    with pytest.raises(WorkerError, match="bad callback") as caught:
        handle.join()
    assert caught.value.state is not None
    caught.value.state.load_into(_model(torch.device("cpu")))
    assert handle.status == "failed"


def test_run_in_which_nothing_was_trained_gives_no_state() -> None:
    def raising(model: nn.Module, batch: object) -> Tensor:
        raise RuntimeError("no batch is good")

    builder = Ddp.builder(_model, lambda params: torch.optim.SGD(params, lr=0.01), raising)
    handle = builder.dataset((INPUTS[:4], TARGETS[:4])).batch_size(4).num_epochs(1).devices(["cpu", "cpu"]).run()
    with pytest.raises(WorkerError, match="no batch is good"):
        handle.join()


def test_join_inside_a_callback_is_refused() -> None:
    handles: list[DdpHandle] = []
    is_known = threading.Event()

    def join(_: object) -> None:
        is_known.wait(10)
        handles[0].join()

    handles.append(_builder().metrics_fn(join).run())
    is_known.set()
    with pytest.raises(WorkerError, match="would wait for itself") as caught:
        handles[0].join()
    assert isinstance(caught.value.__cause__, FlodlError)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, r'eval_fn must return numbers by name such as \{"accuracy": 0.9\}, not None'),
        (0.5, "eval_fn must return numbers by name .* not 0.5"),
        ({"accuracy": "high"}, "eval_fn must return a number as 'accuracy', not 'high'"),
        ({"accuracy": torch.ones(2)}, "eval_fn must return a number as 'accuracy', not tensor"),
        ({"accuracy": 10**400}, "eval_fn must return a number as 'accuracy', not one of 1,329 bits"),
        ({1: 0.5}, "a name that eval_fn returns must be a string, not 1"),
    ],
    ids=["none", "number", "text", "vector", "huge", "name"],
)
def test_evaluation_that_is_no_numbers_by_name_is_refused(result: Any, message: str) -> None:
    with pytest.raises(WorkerError, match=message):
        _builder().eval_fn(lambda model: result).run().join(LIMIT_S)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loss", "low", "scalar 'loss' must be a number, not 'low'"),
        ("loss", None, "scalar 'loss' must be a number, not None"),
        ("loss", 10**400, "scalar 'loss' must be a number, not one of 1,329 bits"),
        ("loss", torch.tensor(1j), "scalar 'loss' must be real, not torch.complex64"),
        (5, 1.0, "the name of a scalar must be a string, not 5"),
        (["loss"], 1.0, r"the name of a scalar must be a string, not \['loss'\]"),
    ],
    ids=["text", "none", "huge", "complex", "number-as-name", "list-as-name"],
)
def test_scalar_that_is_none_is_refused_where_it_is_recorded(name: Any, value: Any, message: str) -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        record_scalar(name, value)
        return _loss(model, batch)

    builder = Ddp.builder(_model, lambda params: torch.optim.SGD(params, lr=0.01), loss).dataset((INPUTS, TARGETS))
    with pytest.raises(WorkerError, match=message) as caught:
        builder.batch_size(4).num_epochs(1).devices(["cpu", "cpu"]).run().join(LIMIT_S)
    assert "record_scalar" in caught.value.failures[0].traceback


class _Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class _Silent(Exception):
    pass


@pytest.mark.parametrize("place", ["epoch_fn", "eval_fn", "metrics_fn"])
@pytest.mark.parametrize(
    ("error", "message"),
    [(_Speechless, r"_Speechless: \(its message cannot be shown\)$"), (_Silent, "_Silent$")],
)
def test_error_without_a_message_is_named_by_its_type(place: str, error: type[Exception], message: str) -> None:
    def fail(*args: object) -> None:
        raise error

    timeline = Timeline()
    builder = _builder().timeline(timeline)
    getattr(builder, place)(fail)
    with pytest.raises(WorkerError, match=message) as caught:
        builder.run().join(LIMIT_S)
    assert isinstance(caught.value.__cause__, error)
