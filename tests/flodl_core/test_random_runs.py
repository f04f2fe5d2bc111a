"""Random runs of the real coordinator and worker logic under a fake clock: each ends, each sample once."""

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_core.events import EpochEnded, RunEnded, RunStarted, SyncEvent
from flodl_core.policies import ApplyPolicy
from flodl_core.simulation import Outcome, VirtualRun, VirtualSpec

NUM_RUNS = int(os.environ.get("FLODL_RANDOM_RUNS", "2000"))


@st.composite
def specs(draw: st.DrawFn) -> VirtualSpec:
    """Anything from one rank and one sample to a dozen unlike ranks over a few thousand."""
    rng = draw(st.randoms(use_true_random=False))
    world_size = draw(st.integers(1, 12))
    batch_size = draw(st.integers(1, 64))
    policy = draw(st.sampled_from(list(ApplyPolicy)))
    if policy is not ApplyPolicy.SYNC:
        world_size = max(2, world_size)
    return VirtualSpec(
        batch_ms=tuple(round(10 ** rng.uniform(-1, 2), 3) for _ in range(world_size)),
        epoch_size=draw(st.integers(1, 40 * batch_size)),
        batch_size=batch_size,
        num_epochs=draw(st.integers(1, 5)),
        policy=policy,
        meets=draw(st.booleans()),
        average_ms=draw(st.sampled_from([0.0, 0.5, 3.0, 50.0])),
        jitter=draw(st.sampled_from([0.0, 0.05, 0.9])),
        latency_ms=draw(st.sampled_from([0.0, 0.1, 5.0, 100.0])),
        anchor=draw(st.integers(1, 20)),
        max_batch_diff=draw(st.none() | st.integers(0, 5)),
        max_overshoot=draw(st.none() | st.integers(0, 5)),
        seed=draw(st.integers(0, 2**32)),
    )


def check_completed(spec: VirtualSpec, run: VirtualRun, outcome: Outcome) -> None:
    """Laws 1, 4 and 6, and what a run tells of itself."""
    ranks = range(len(spec.batch_ms))
    assert outcome.finish is not None
    assert outcome.finish.status == "completed"
    assert sorted(outcome.trained) == list(range(spec.num_epochs))
    for epoch, counts in outcome.trained.items():
        assert len(counts) == spec.epoch_size, f"epoch {epoch} lacks samples"
        assert set(counts.values()) == {1}, f"epoch {epoch} trained a sample twice"
    totals = run.coordinator.book.totals()
    assert totals.num_samples == spec.epoch_size * spec.num_epochs
    assert totals.num_batches == outcome.num_batches
    assert [metrics.epoch for metrics in outcome.epochs] == list(range(spec.num_epochs))
    assert all(metrics.num_samples == spec.epoch_size for metrics in outcome.epochs)
    for rank in ranks:
        assert outcome.begun[rank] == list(range(spec.num_epochs)), f"rank {rank} did not begin each epoch once"
    check_events(spec, outcome)


def check_events(spec: VirtualSpec, outcome: Outcome) -> None:
    """Events come in order, averages are numbered without gaps, and every sample is in one of them."""
    assert isinstance(outcome.events[0], RunStarted)
    assert isinstance(outcome.events[-1], RunEnded)
    times = [event.time_s for event in outcome.events]
    assert times == sorted(times)
    ended = [event.epoch for event in outcome.events if isinstance(event, EpochEnded)]
    assert ended == list(range(spec.num_epochs))
    if spec.policy is not ApplyPolicy.SYNC:
        syncs = [event for event in outcome.events if isinstance(event, SyncEvent)]
        assert [event.round for event in syncs] == list(range(len(syncs)))
        in_averages = sum(sum(event.weights.values()) for event in syncs)
        assert in_averages == spec.epoch_size * spec.num_epochs, "a sample is in no average, or in two"


@settings(max_examples=NUM_RUNS)
@given(spec=specs())
def test_every_run_ends_with_each_sample_trained_once(spec: VirtualSpec) -> None:
    run = VirtualRun(spec)
    check_completed(spec, run, run.run())


@settings(max_examples=max(100, NUM_RUNS // 5))
@given(spec=specs(), share=st.floats(0, 1.2))
def test_every_cancelled_run_ends(spec: VirtualSpec, share: float) -> None:
    total_ms = spec.epoch_size * spec.num_epochs / spec.batch_size / sum(1 / ms for ms in spec.batch_ms)
    object.__setattr__(spec, "cancel_at_s", share * total_ms / 1e3)
    run = VirtualRun(spec)
    outcome = run.run()
    assert outcome.finish is not None
    assert outcome.finish.status in {"cancelled", "completed"}
    assert all(set(counts.values()) == {1} for counts in outcome.trained.values())
    assert run.coordinator.book.totals().num_batches == outcome.num_batches, "a trained batch was not reported"
    if outcome.finish.status == "cancelled":
        assert outcome.finish.payload is not None, "a cancelled run gives what it has trained"


@settings(max_examples=max(100, NUM_RUNS // 5))
@given(spec=specs(), victim=st.integers(0, 11), batch=st.integers(0, 20))
def test_every_run_that_loses_a_worker_ends(spec: VirtualSpec, victim: int, batch: int) -> None:
    victim %= len(spec.batch_ms)
    object.__setattr__(spec, "raise_at", (victim, batch))
    run = VirtualRun(spec)
    outcome = run.run()
    assert outcome.finish is not None
    died = any(failure.rank == victim for failure in run.coordinator.failures)
    if not died:
        check_completed(spec, run, outcome)
        return
    assert outcome.finish.status == "failed"
    assert (outcome.finish.payload is not None) == (len(spec.batch_ms) > 1), "survivors are averaged"
    assert all(set(counts.values()) == {1} for counts in outcome.trained.values())
