"""Law 2: the average is sum(n_r x theta_r) / sum(n_r), whichever way it is computed; and what a replica makes of it."""

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from flodl_core.averaging import Averager, divergence
from flodl_core.errors import ModelError, NonFiniteError
from flodl_core.meetings import Contribution, GradientMeeting, MeetingResult, ParameterMeeting
from flodl_core.messages import Averaged, Entry
from flodl_core.replica import Replica, ReplicaState, load_initial
from flodl_core.tally import Tally, tally
from tests.flodl_core.models import FloatingBuffers, Frozen, Masked, MixedTypes, Tied, ZooModel

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}
"""Relative; sums run in float32, the last rounding is the parameter's own. Float64 is summed in float64."""


def entry(
    rank: int,
    num_samples: int,
    *,
    total_batches: int = 1,
    completed: dict[int, int] | None = None,
    is_finite: bool = True,
) -> Entry:
    return Entry(
        rank=rank,
        round=0,
        num_samples=num_samples,
        total_batches=total_batches,
        completed=completed or {},
        is_finite=is_finite,
    )


def settle(entries: Sequence[Entry]) -> Tally:
    terms = tally(entries, epochs=(), epoch_size=1)
    assert terms is not None
    return terms


def randomise(model: nn.Module, seed: int) -> None:
    """Other values in every parameter, and in every buffer that is meant to move."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator))
        for name, buffer in model.named_buffers():
            if name.endswith("mask"):
                continue
            if buffer.is_floating_point():
                buffer.copy_(torch.rand(buffer.shape, generator=generator))
            elif not buffer.is_complex():
                buffer.fill_(seed + 1)


def replicas_of(make: Callable[[], nn.Module], world_size: int) -> list[Replica]:
    """Replicas of one model that have drifted apart, but for what is frozen."""
    first = make()
    randomise(first, 99)
    replicas = []
    for rank in range(world_size):
        model = copy.deepcopy(first)
        frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
        randomise(model, rank)
        with torch.no_grad():
            for name, value in frozen.items():
                model.get_parameter(name).copy_(value)
        replicas.append(Replica(model))
    return replicas


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def oracle(models: Sequence[nn.Module], weights: Sequence[int]) -> dict[str, Tensor]:
    """The mean in float64, from the models' own tensors. Weights of all zeros: the lowest rank."""
    used = weights if any(weights) else [1] + [0] * (len(weights) - 1)
    return {
        name: sum(
            (named_tensors(model)[name].to(torch.float64) * w for model, w in zip(models, used, strict=True) if w),
            start=torch.zeros(()),
        )
        / sum(used)
        for name, tensor in named_tensors(models[0]).items()
        if tensor.is_floating_point() and not name.endswith("mask")
    }


def check_against(model: nn.Module, expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        actual = named_tensors(model)[name]
        tolerance = TOLERANCE[actual.dtype]
        torch.testing.assert_close(actual.to(torch.float64), value, rtol=tolerance, atol=tolerance, msg=name)


# The three ways to average


def through_cpu(replicas: Sequence[Replica], entries: Sequence[Entry]) -> Tally:
    """Snapshots are handed in, the mean is computed elsewhere, each replica merges it."""
    terms = settle(entries)
    snapshots = {rank: replica.state().clone() for rank, replica in enumerate(replicas)}
    mean = Averager().average(snapshots, terms)
    for rank, replica in enumerate(replicas):
        replica.merge(mean, snapshots[rank], has_trained=False)
    return terms


def in_place(replicas: Sequence[Replica], entries: Sequence[Entry]) -> MeetingResult:
    """The last to arrive at the rendezvous averages for all."""
    posted: list[Averaged] = []
    meeting = ParameterMeeting(epoch_size=1, num_epochs=1, keeps_epoch=lambda epoch: False, post=posted.append)
    contributions = {e.rank: Contribution(entry=e, state=replicas[e.rank].state()) for e in entries}
    result = meeting(contributions, {e.rank: 0.0 for e in entries})
    for replica in replicas:
        replica.take_buffers()
    return result


WAYS: tuple[Callable[[Sequence[Replica], Sequence[Entry]], object], ...] = (through_cpu, in_place)
each_way = pytest.mark.parametrize("average", WAYS)
MODELS: tuple[Callable[[], nn.Module], ...] = (ZooModel, MixedTypes, Tied, Frozen, Masked, FloatingBuffers)


@each_way
@given(
    weights=st.lists(st.sampled_from([0, 1, 3, 64, 10**6]), min_size=1, max_size=6),
    make=st.sampled_from(MODELS),
)
def test_average_is_the_weighted_mean(
    average: Callable[[Sequence[Replica], Sequence[Entry]], object],
    weights: list[int],
    make: Callable[[], nn.Module],
) -> None:
    replicas = replicas_of(make, len(weights))
    expected = oracle([replica.model for replica in replicas], weights)
    average(replicas, [entry(rank, weight) for rank, weight in enumerate(weights)])
    for replica in replicas:
        check_against(replica.model, expected)


@given(weights=st.lists(st.integers(0, 100), min_size=1, max_size=5), make=st.sampled_from(MODELS))
def test_both_backends_give_the_same_bits(weights: list[int], make: Callable[[], nn.Module]) -> None:
    entries = [entry(rank, weight) for rank, weight in enumerate(weights)]
    first, second = replicas_of(make, len(weights)), replicas_of(make, len(weights))
    through_cpu(first, entries)
    in_place(second, entries)
    for mine, theirs in zip(first, second, strict=True):
        for name, tensor in named_tensors(mine.model).items():
            assert torch.equal(tensor, named_tensors(theirs.model)[name]), name


@each_way
def test_all_replicas_are_bitwise_equal_after_an_average(
    average: Callable[[Sequence[Replica], Sequence[Entry]], object],
) -> None:
    replicas = replicas_of(ZooModel, 3)
    average(replicas, [entry(0, 5), entry(1, 0), entry(2, 7)])
    for replica in replicas[1:]:
        for name, tensor in named_tensors(replica.model).items():
            assert torch.equal(tensor, named_tensors(replicas[0].model)[name]), name


@each_way
def test_rank_without_samples_never_enters_the_sum(
    average: Callable[[Sequence[Replica], Sequence[Entry]], object],
) -> None:
    # infinity times zero would be NaN; its own flag is of no use where a value is merely huge
    replicas = replicas_of(ZooModel, 2)
    expected = oracle([replica.model for replica in replicas], [4, 0])
    with torch.no_grad():
        next(replicas[1].model.parameters()).fill_(torch.inf)
    average(replicas, [entry(0, 4), entry(1, 0)])
    check_against(replicas[1].model, expected)


@each_way
def test_replica_that_is_not_finite_is_left_out_and_takes_the_mean(
    average: Callable[[Sequence[Replica], Sequence[Entry]], object],
) -> None:
    replicas = replicas_of(ZooModel, 3)
    expected = oracle([replica.model for replica in replicas], [2, 0, 6])
    with torch.no_grad():
        next(replicas[1].model.parameters()).fill_(torch.nan)
    entries = [entry(0, 2), entry(1, 4, is_finite=replicas[1].state().is_finite()), entry(2, 6)]
    assert not entries[1].is_finite
    result = average(replicas, entries)
    assert isinstance(result, Tally | MeetingResult)
    assert result.excluded == (1,)
    check_against(replicas[1].model, expected)


def test_average_without_a_finite_replica_is_refused() -> None:
    entries = [entry(0, 1, is_finite=False), entry(1, 1, is_finite=False)]
    assert tally(entries, epochs=(), epoch_size=1) is None
    with pytest.raises(NonFiniteError, match="no replica is finite"):
        in_place(replicas_of(Tied, 2), entries)


# The terms


@given(
    counts=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.booleans()), min_size=1, max_size=6),
)
def test_terms_account_for_every_sample(counts: list[tuple[int, int, bool]]) -> None:
    entries = [
        entry(rank, samples, total_batches=batches, is_finite=finite)
        for rank, (samples, batches, finite) in enumerate(counts)
    ]
    terms = tally(entries[::-1], epochs=(), epoch_size=1)
    if not any(finite for _, _, finite in counts):
        assert terms is None
        return
    assert terms is not None
    assert sum(terms.num_samples.values()) + terms.discarded_samples == sum(samples for samples, _, _ in counts)
    assert terms.global_step == sum(batches for _, batches, _ in counts)
    assert list(terms.weights) == sorted(terms.weights)
    assert terms.num_samples[terms.most_work] == max(terms.num_samples.values())
    assert not set(terms.weights) & set(terms.excluded)


def test_average_completes_the_epochs_of_which_all_samples_are_in_it() -> None:
    entries = [entry(0, 1, completed={3: 6, 4: 10, 5: 1}), entry(1, 1, completed={3: 4, 4: 0, 5: 2})]
    assert settle_epochs(entries, [3, 4, 5]) == (3, 4)
    assert settle_epochs(entries, [3]) == (3,)
    assert settle_epochs(entries[:1], [3, 4]) == ()  # in order: not 4 before 3


def settle_epochs(entries: Sequence[Entry], epochs: Sequence[int]) -> tuple[int, ...]:
    terms = tally(entries, epochs=epochs, epoch_size=10)
    assert terms is not None
    return terms.epochs


# Buffers


def test_integer_buffers_come_from_the_rank_that_trained_most() -> None:
    replicas = replicas_of(ZooModel, 3)
    through_cpu(replicas, [entry(0, 5), entry(1, 9), entry(2, 9)])
    for replica in replicas:
        assert replica.model.get_buffer("norm.num_batches_tracked").item() == 2  # rank 1 + 1: the lowest of equals


@each_way
def test_mask_of_minus_infinity_stays(average: Callable[[Sequence[Replica], Sequence[Entry]], object]) -> None:
    replicas = replicas_of(Masked, 3)
    mask = replicas[0].model.get_buffer("mask").clone()
    assert torch.isinf(mask).any()
    average(replicas, [entry(0, 1), entry(1, 2), entry(2, 4)])
    for replica in replicas:
        assert torch.equal(replica.model.get_buffer("mask"), mask)
        assert all(torch.isfinite(param).all() for param in replica.model.parameters())


@each_way
def test_complex_buffers_keep_their_imaginary_part(
    average: Callable[[Sequence[Replica], Sequence[Entry]], object],
) -> None:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("angles", torch.polar(torch.ones(4), torch.arange(4.0)))

    replicas = replicas_of(Rotary, 2)
    angles = replicas[0].model.get_buffer("angles").clone()
    average(replicas, [entry(0, 1), entry(1, 2)])
    for replica in replicas:
        assert torch.equal(replica.model.get_buffer("angles"), angles)


def test_buffer_that_is_bound_anew_in_training_is_still_averaged() -> None:
    replicas = replicas_of(FloatingBuffers, 2)
    for rank, replica in enumerate(replicas):
        replica.model.register_buffer("level", torch.tensor(4.0 * rank))
    through_cpu(replicas, [entry(0, 1), entry(1, 3)])
    assert [replica.model.get_buffer("level").item() for replica in replicas] == [3.0, 3.0]


# Replicas


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


def test_frozen_parameters_are_not_touched() -> None:
    replicas = replicas_of(Frozen, 2)
    with torch.no_grad():
        replicas[1].model.get_parameter("backbone.weight").fill_(7.0)
    frozen = replicas[0].model.get_parameter("backbone.weight").clone()
    through_cpu(replicas, [entry(0, 1), entry(1, 1)])
    assert torch.equal(replicas[0].model.get_parameter("backbone.weight"), frozen)
    assert (replicas[1].model.get_parameter("backbone.weight") == 7.0).all()


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


# Drift


def test_divergence_is_the_relative_distance_from_the_mean() -> None:
    replicas = replicas_of(ZooModel, 3)
    states = {rank: replica.state().clone() for rank, replica in enumerate(replicas)}
    mean = Averager().average(states, settle([entry(rank, 1) for rank in range(3)]))
    drift = divergence(states, mean, [0, 2])
    centre = torch.cat([tensor.to(torch.float64) for tensor in mean.params])
    for rank in (0, 2):
        replica = torch.cat([tensor.to(torch.float64) for tensor in states[rank].params])
        expected = float((replica - centre).norm() / centre.norm())
        assert drift[rank] == pytest.approx(expected, rel=1e-5)
    assert set(drift) == {0, 2}


def test_divergence_from_a_mean_of_zero() -> None:
    def state(value: float) -> ReplicaState:
        return ReplicaState(params=(torch.full((3,), value),), floating=(), integer=torch.empty(0, dtype=torch.int64))

    assert divergence({0: state(0.0), 1: state(1.0)}, state(0.0), [0, 1]) == {0: 0.0, 1: float("inf")}


# Gradients


def test_gradients_are_averaged_by_samples_and_missing_ones_count_as_zero() -> None:
    replicas = [Replica(nn.Linear(2, 1)) for _ in range(3)]
    for replica in replicas[:2]:
        replica.trainable[0].grad = torch.tensor([[1.0, 2.0]])
    replicas[1].trainable[0].grad = None
    contributions = {
        rank: Contribution(entry=entry(rank, samples), state=replicas[rank].gradients())
        for rank, samples in enumerate([3, 1, 0])
    }
    result = GradientMeeting(world_size=3)(contributions, dict.fromkeys(range(3), 0.0))
    assert result.has_grad == (True, False)
    for replica in replicas:
        replica.take_gradients(result.has_grad)
        weight, bias = replica.trainable
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, torch.tensor([[0.75, 1.5]]))
        assert bias.grad is None


def test_sparse_gradients_are_refused_with_the_way_out() -> None:
    model = nn.Embedding(3, 2, sparse=True)
    replica = Replica(model)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(ModelError, match="sparse=False"):
        replica.gradients()
