"""Laws 1, 3 and 4: each sample once an epoch, nothing trained thrown away, every batch counted."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from flodl_core import ApplyPolicy, AverageBackend, SyncEvent, WorkerSpec
from flodl_core.dealer import Dealer
from flodl_core.messages import EpochPlan
from flodl_core.overshoot import OvershootLimit
from tests.flodl_core.training import (
    BACKENDS,
    POLICIES,
    Outcome,
    Samples,
    TrainLog,
    configure,
    events_of,
    every_local_way,
    every_way,
    mean_squared_error,
    numbered_samples,
    train,
)

UNLIKE = (WorkerSpec("cpu"), WorkerSpec("cpu", slowdown=3.0), WorkerSpec("cpu", slowdown=1.5), WorkerSpec("cpu"))


def train_logged(
    num_samples: int,
    *,
    policy: ApplyPolicy,
    backend: AverageBackend,
    world_size: int,
    batch_size: int = 8,
    num_epochs: int = 2,
    drop_last: bool = False,
    anchor: int = 3,
) -> tuple[Outcome, TrainLog]:
    log = TrainLog()
    builder = configure(
        numbered_samples(num_samples),
        policy=policy,
        backend=backend,
        devices=UNLIKE[:world_size],
        train_fn=log.train_fn,
        optim_factory=log.make_optimizer,
        batch_size=batch_size,
        num_epochs=num_epochs,
    )
    return train(builder.epoch_fn(log.begin_epoch).drop_last(drop_last).anchor(anchor)), log


def check_each_once(outcome: Outcome, log: TrainLog, *, epoch_size: int, num_epochs: int) -> None:
    """Law 1, and that the run's own numbers agree with what was seen inside ``train_fn``."""
    assert set(log.samples.values()) <= {1}, "a sample was trained twice in an epoch"
    for epoch in range(num_epochs):
        assert sum(seen == epoch for seen, _ in log.samples) == epoch_size
    assert [metrics.num_samples for metrics in outcome.metrics] == [epoch_size] * num_epochs
    totals = outcome.handle.progress().totals
    assert totals.num_samples == epoch_size * num_epochs == sum(log.sizes)
    assert totals.num_batches == log.num_calls  # law 4
    assert sum(metrics.num_batches for metrics in outcome.metrics) == log.num_calls
    assert outcome.events[-1].global_step == log.num_calls  # type: ignore[union-attr]  # the last is RunEnded
    assert outcome.handle.status == "completed"


@every_way
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_sample_is_trained_once_an_epoch(policy: ApplyPolicy, backend: AverageBackend, world_size: int) -> None:
    outcome, log = train_logged(203, policy=policy, backend=backend, world_size=world_size)
    check_each_once(outcome, log, epoch_size=203, num_epochs=2)


@every_way
@pytest.mark.parametrize(
    ("num_samples", "batch_size", "world_size"),
    [
        pytest.param(2, 4, 3, id="fewer samples than ranks"),
        pytest.param(1, 1, 2, id="one sample"),
        pytest.param(5, 64, 2, id="batch larger than the data"),
        pytest.param(24, 8, 3, id="one batch for each rank"),
        pytest.param(25, 8, 3, id="one sample more"),
        pytest.param(7, 1, 2, id="batches of one"),
    ],
)
def test_every_sample_is_trained_once_where_sizes_do_not_fit(
    policy: ApplyPolicy, backend: AverageBackend, num_samples: int, batch_size: int, world_size: int
) -> None:
    outcome, log = train_logged(
        num_samples, policy=policy, backend=backend, world_size=world_size, batch_size=batch_size, num_epochs=3
    )
    check_each_once(outcome, log, epoch_size=num_samples, num_epochs=3)
    assert max(log.sizes) <= batch_size


# A run takes some milliseconds: fewer examples here than for the coordinator alone under its fake clock.
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    policy=st.sampled_from(POLICIES),
    backend=st.sampled_from(BACKENDS),
    world_size=st.integers(1, 4),
    num_samples=st.integers(1, 150),
    batch_size=st.integers(1, 20),
    num_epochs=st.integers(1, 3),
    anchor=st.integers(1, 6),
)
def test_every_sample_is_trained_once_for_any_sizes(
    policy: ApplyPolicy,
    backend: AverageBackend,
    world_size: int,
    num_samples: int,
    batch_size: int,
    num_epochs: int,
    anchor: int,
) -> None:
    outcome, log = train_logged(
        num_samples,
        policy=policy,
        backend=backend,
        world_size=world_size,
        batch_size=batch_size,
        num_epochs=num_epochs,
        anchor=anchor,
    )
    check_each_once(outcome, log, epoch_size=num_samples, num_epochs=num_epochs)


@every_way
def test_drop_last_leaves_out_the_rest_and_says_how_much_is_trained(
    policy: ApplyPolicy, backend: AverageBackend
) -> None:
    outcome, log = train_logged(45, policy=policy, backend=backend, world_size=2, drop_last=True)
    epoch_size = 32 if policy is ApplyPolicy.SYNC else 40  # whole rounds, or whole batches
    check_each_once(outcome, log, epoch_size=epoch_size, num_epochs=2)
    assert set(log.sizes) == {8}
    assert outcome.handle.training_meta["num_samples"] == epoch_size


@every_way
@pytest.mark.parametrize("world_size", [2, 3])
def test_last_batch_is_the_only_smaller_one(policy: ApplyPolicy, backend: AverageBackend, world_size: int) -> None:
    _, log = train_logged(8 * 12 + 3, policy=policy, backend=backend, world_size=world_size, num_epochs=1)
    smaller = sorted(size for size in log.sizes if size < 8)
    # sync splits what is left evenly between the ranks
    assert smaller == ([3] if policy is not ApplyPolicy.SYNC else [1, 2] if world_size == 2 else [1, 1, 1])


@every_local_way
@pytest.mark.parametrize("world_size", [2, 3])
def test_all_that_was_trained_is_in_an_average(policy: ApplyPolicy, backend: AverageBackend, world_size: int) -> None:
    outcome, log = train_logged(203, policy=policy, backend=backend, world_size=world_size, num_epochs=3)
    syncs = events_of(outcome, SyncEvent)
    assert sum(sum(event.weights.values()) for event in syncs) == sum(log.sizes)
    assert outcome.handle.progress().totals.discarded_samples == 0
    assert log.num_steps == log.num_calls
    assert syncs[-1].global_step == log.num_calls


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("num_samples", "num_rounds"), [(48, 3), (49, 4), (1, 1)])
def test_all_ranks_take_every_step_of_a_sync_run(backend: AverageBackend, num_samples: int, num_rounds: int) -> None:
    outcome, log = train_logged(num_samples, policy=ApplyPolicy.SYNC, backend=backend, world_size=2, num_epochs=2)
    assert log.num_steps == 2 * 2 * num_rounds  # ranks, epochs: those without samples step too
    assert sum(event.num_syncs for event in events_of(outcome, SyncEvent)) == 2 * num_rounds
    assert outcome.handle.progress().num_syncs == 2 * num_rounds


@every_way
def test_epochs_begin_once_on_every_rank_in_order(policy: ApplyPolicy, backend: AverageBackend) -> None:
    _, log = train_logged(5, policy=policy, backend=backend, world_size=3, batch_size=4, num_epochs=4)
    assert log.begun == {rank: [0, 1, 2, 3] for rank in range(3)}


def sample_order(seed: int) -> list[int]:
    """The samples of two epochs of 40, in the order in which a single worker met them."""
    seen: list[int] = []

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        seen.extend(batch[2].tolist())
        return mean_squared_error(model, batch)

    train(configure(numbered_samples(40), devices=["cpu"], train_fn=train_fn).seed(seed))
    return seen


def test_order_of_samples_is_another_in_each_epoch_and_for_each_seed() -> None:
    order = sample_order(1)
    assert order[:40] != order[40:]
    assert sample_order(1) == order
    assert sample_order(2)[:40] != order[:40]


@given(data=st.data(), world_size=st.integers(2, 5), overshoot=st.integers(0, 4), epoch_size=st.integers(1, 60))
def test_no_rank_goes_back_to_an_epoch(data: st.DataObject, world_size: int, overshoot: int, epoch_size: int) -> None:
    # speeds that change their order make a rank pass over the rest of an epoch that it would later take after all
    dealer = Dealer(
        range(world_size), epoch_size=epoch_size, batch_size=1, num_epochs=3, overshoot=OvershootLimit(100, overshoot)
    )
    queues: dict[int, list[EpochPlan]] = {rank: [] for rank in range(world_size)}
    dealt: dict[int, list[int]] = {rank: [] for rank in range(world_size)}
    while dealer.current_epoch < 3:
        rank = data.draw(st.integers(0, world_size - 1))
        dealer.set_batch_ms(rank, data.draw(st.sampled_from([0.5, 30.0, 100.0])))
        plans = dealer.deal(rank, round_batches=2)
        queues[rank] += plans
        dealt[rank] += [plan.epoch for plan in plans]
        busy = [rank for rank in range(world_size) if queues[rank]]
        for other in busy[:2]:
            plan = queues[other].pop(0)
            dealer.complete(other, plan.epoch, plan.size)
            dealer.averaged(range(dealer.averaged_epoch + 1, dealer.current_epoch))
    assert all(epochs == sorted(epochs) for epochs in dealt.values())
