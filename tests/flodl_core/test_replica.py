"""One worker's model: flat tensors behind it, what it hands in, and what it makes of an average."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from flodl_core import TrainedState
from flodl_core.averaging import Averager
from flodl_core.errors import ModelError
from flodl_core.policies import ApplyPolicy, AverageBackend
from flodl_core.replica import Replica, load_initial
from tests.flodl_core.average_checks import check_frozen
from tests.flodl_core.averaging_ways import (
    MODELS,
    Average,
    each_way,
    entry,
    named_tensors,
    oracle,
    randomise,
    replicas_of,
    settle,
    through_cpu,
)
from tests.flodl_core.models import Tied, ZooModel
from tests.flodl_core.training import NUM_FEATURES, configure, every_way, numbered_samples, train


@pytest.mark.parametrize("make", MODELS)
def test_flat_parameters_change_nothing_that_a_model_shows(make: Callable[[], nn.Module]) -> None:
    plain = make()
    before = {name: (t.clone(), t.stride()) for name, t in named_tensors(plain).items()}
    replica = Replica(plain)
    for name, (value, stride) in before.items():
        tensor = named_tensors(replica.model)[name]
        assert torch.equal(tensor, value)
        assert tensor.stride() == stride
    replica.load(replica.state().clone())
    for name, (value, _) in before.items():
        assert torch.equal(named_tensors(replica.model)[name], value)


def test_flat_buffer_is_written_by_the_optimizer_and_read_by_the_model() -> None:
    replica = Replica(ZooModel())
    with torch.no_grad():
        replica.params[0].fill_(0.25)
    assert all((param == 0.25).all() for param in replica.trainable)
    with torch.no_grad():
        replica.trainable[0].fill_(2.0)
    assert (replica.state().params[0][: replica.trainable[0].numel()] == 2.0).all()


def test_tied_parameter_is_averaged_once_and_stays_tied() -> None:
    replicas = replicas_of(Tied, 2)
    tied = replicas[0].model.get_parameter("embed.weight")
    assert sum(flat.numel() for flat in replicas[0].params) < 2 * tied.numel() + 64
    through_cpu(replicas, [entry(0, 1), entry(1, 1)])
    for replica in replicas:
        assert replica.model.get_parameter("embed.weight") is replica.model.get_parameter("head.weight")


@each_way
def test_frozen_parameters_are_not_touched(average: Average) -> None:
    check_frozen(average)


def test_parameter_that_is_not_dense_gets_memory_of_its_own() -> None:
    model = nn.Linear(2, 3)
    model.weight = nn.Parameter(torch.arange(12.0).reshape(3, 4)[:, ::2])
    value = model.weight.detach().clone()
    replica = Replica(model)
    assert torch.equal(model.weight, value)
    with torch.no_grad():
        replica.params[0].zero_()
    assert not model.weight.any()


def test_parameter_that_was_replaced_is_noticed() -> None:
    model = nn.Linear(2, 1)
    replica = Replica(model)
    model.weight.data = torch.zeros(1, 2)
    with pytest.raises(ModelError, match="replaced"):
        replica.state()


@pytest.mark.parametrize(("model", "message"), [(nn.ReLU(), "no trainable"), (nn.LazyLinear(3), "is lazy")])
def test_model_that_cannot_be_replicated_is_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Replica(model)


def turned_linear() -> nn.Module:
    """As ``nn.Linear(2, 3)``, with a weight that lies in memory column by column."""
    layer = nn.Linear(2, 3)
    layer.weight = nn.Parameter(torch.zeros(2, 3).t())
    return layer


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2)), r"0\.weight has shape \(2, 2\) here and \(3, 2\)"),
        (nn.Sequential(nn.Linear(2, 3, bias=False)), r"0\.bias is not in all replicas"),
        (nn.Sequential(turned_linear()), r"0\.weight has memory order \(1, 3\) here and \(2, 1\)"),
        (nn.Sequential(nn.Linear(2, 3).double()), r"0\.weight has dtype"),
        (nn.Sequential(nn.Linear(2, 3).requires_grad_(False)), r"0\.weight has requires_grad False"),
        (nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, affine=False)), r"buffer 1\.running_mean"),
    ],
)
def test_replicas_that_differ_are_named(other: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_initial(other, nn.Sequential(nn.Linear(2, 3)))


def test_sparse_gradients_are_refused_with_the_way_out() -> None:
    model = nn.Embedding(3, 2, sparse=True)
    replica = Replica(model)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(ModelError, match="sparse=False"):
        replica.gradients()


# Training goes on while the CPU averages


@given(
    weights=st.lists(st.integers(0, 9), min_size=2, max_size=4),
    trained=st.lists(st.floats(-2, 2, width=32), min_size=4, max_size=4),
)
def test_merge_keeps_what_was_trained_meanwhile(weights: list[int], trained: list[float]) -> None:
    replicas = replicas_of(ZooModel, len(weights))
    expected = oracle([replica.model for replica in replicas], weights)
    snapshots = {rank: replica.state().clone() for rank, replica in enumerate(replicas)}
    mean = Averager().average(snapshots, settle([entry(rank, weight) for rank, weight in enumerate(weights)]))
    for rank, replica in enumerate(replicas):
        with torch.no_grad():
            for param in replica.trainable:
                param.add_(trained[rank])
        replica.merge(mean, snapshots[rank], has_trained=True)
        for name, param in replica.model.named_parameters():
            torch.testing.assert_close(
                param.to(torch.float64), expected[name] + trained[rank], rtol=1e-5, atol=1e-5, msg=name
            )


def test_snapshot_is_not_what_training_writes_to() -> None:
    replica = replicas_of(ZooModel, 1)[0]
    snapshot = replica.state().clone()
    before = [tensor.clone() for tensor in snapshot.tensors()]
    randomise(replica.model, 5)
    assert all(torch.equal(tensor, old) for tensor, old in zip(snapshot.tensors(), before, strict=True))


class Wave(nn.Module):
    """A linear map of complex numbers, and a real one."""

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        self.turn = nn.Linear(NUM_FEATURES, 3, dtype=torch.complex64, device=device)
        self.scale = nn.Linear(3, 1, device=device)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scale(self.turn(x.to(torch.complex64)).abs())
        return out


@each_way
def test_complex_parameters_are_averaged_with_both_their_parts(average: Average) -> None:
    replicas = replicas_of(Wave, 2)
    for rank, replica in enumerate(replicas):
        with torch.no_grad():
            for param in replica.trainable:
                param.fill_(1.0 + 4 * rank if not param.is_complex() else complex(1.0 + 4 * rank, 4.0 * rank))
    average(replicas, [entry(0, 1), entry(1, 3)])
    for replica in replicas:
        for param in replica.trainable:
            assert torch.all(param == (complex(4.0, 3.0) if param.is_complex() else 4.0))


@every_way
def test_model_with_complex_parameters_trains(policy: ApplyPolicy, backend: AverageBackend, tmp_path: Path) -> None:
    builder = configure(
        numbered_samples(40),
        policy=policy,
        backend=backend,
        num_epochs=3,
        batch_size=4,
        model_factory=Wave,
        optim_factory=lambda params: torch.optim.SGD(params, lr=0.01),
    )
    if policy is not ApplyPolicy.SYNC:
        builder.outer_optimizer(lr=0.7, momentum=0.1, nesterov=False)
    outcome = train(builder)
    assert outcome.metrics[-1].avg_loss < outcome.metrics[0].avg_loss
    outcome.state.save(tmp_path / "wave.safetensors")
    model = Wave()
    TrainedState.load(tmp_path / "wave.safetensors").load_into(model)
    assert torch.equal(model.turn.weight, outcome.state.params["turn.weight"])
    assert model.turn.weight.imag.any()
