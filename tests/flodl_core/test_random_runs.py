"""Random runs of the real coordinator and worker logic under a fake clock: each ends, each sample once."""

import os
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from flodl_core.local_options import LocalOptions
from flodl_core.policies import ApplyPolicy
from flodl_core.simulation import Death, Moment, SimulationSpec
from tests.flodl_core.simulation.laws import check_completed, check_every_batch_counted, check_nothing_twice
from tests.flodl_core.simulation.recording import Recording

NUM_RUNS = int(os.environ.get("FLODL_RANDOM_RUNS", "2000"))


@st.composite
def specs(draw: st.DrawFn) -> SimulationSpec:
    """Anything from one rank and one sample to a dozen unlike ranks over a few thousand."""
    rng = draw(st.randoms(use_true_random=False))
    world_size = draw(st.integers(1, 12))
    batch_size = draw(st.integers(1, 64))
    return SimulationSpec(
        batch_ms=tuple(round(10 ** rng.uniform(-1, 2), 3) for _ in range(world_size)),
        epoch_size=draw(st.integers(1, 40 * batch_size)),
        batch_size=batch_size,
        num_epochs=draw(st.integers(1, 5)),
        options=LocalOptions(
            policy=draw(st.sampled_from(list(ApplyPolicy))),
            meets=draw(st.booleans()),
            anchor=draw(st.integers(1, 20)),
            max_batch_diff=draw(st.none() | st.integers(0, 5)),
            max_overshoot=draw(st.none() | st.integers(0, 5)),
        ),
        average_ms=draw(st.sampled_from([0.0, 0.5, 3.0, 50.0])),
        jitter=draw(st.sampled_from([0.0, 0.05, 0.9])),
        latency_ms=draw(st.sampled_from([0.0, 0.1, 5.0, 100.0])),
        seed=draw(st.integers(0, 2**32)),
    )


ONE_BATCH_EACH = SimulationSpec(
    batch_ms=(1.0, 1.0),
    epoch_size=2,
    batch_size=1,
    num_epochs=5,
    options=LocalOptions(anchor=1, meets=False),
    average_ms=0.0,
    latency_ms=0.0,
)


@settings(max_examples=NUM_RUNS)
@given(spec=specs())
def test_every_run_ends_with_each_sample_trained_once(spec: SimulationSpec) -> None:
    check_completed(Recording(spec).run())


@settings(max_examples=max(100, NUM_RUNS // 5))
@given(spec=specs(), share=st.floats(0, 1.2))
def test_every_cancelled_run_ends(spec: SimulationSpec, share: float) -> None:
    total_ms = spec.epoch_size * spec.num_epochs / spec.batch_size / sum(1 / ms for ms in spec.batch_ms)
    run = Recording(replace(spec, cancel_at_s=share * total_ms / 1e3)).run()
    assert run.status in {"cancelled", "completed"}
    check_nothing_twice(run)
    check_every_batch_counted(run)
    assert run.has_result or run.status == "completed", "a cancelled run gives what it has trained"


@settings(max_examples=max(100, NUM_RUNS // 5))
@given(spec=specs(), victim=st.integers(0, 11), moment=st.sampled_from(Moment), at=st.integers(0, 20))
@example(spec=ONE_BATCH_EACH, victim=0, moment=Moment.UPDATE, at=3)
def test_every_run_that_loses_a_worker_ends(spec: SimulationSpec, victim: int, moment: Moment, at: int) -> None:
    victim %= spec.world_size
    if moment is Moment.EPOCH:
        at %= spec.num_epochs
    run = Recording(replace(spec, deaths=(Death(rank=victim, moment=moment, at=at),))).run()
    if run.status == "completed":  # the moment did not come, or came when all was done
        took_the_last = moment is Moment.UPDATE and at == len(run.syncs) - 1
        assert moment is Moment.EXIT or took_the_last or not run.simulation.coordinator.failures
        check_completed(run)
        return
    check_nothing_twice(run)
    assert run.status == "failed"
    assert run.has_result == (spec.world_size > 1), "survivors are averaged"
