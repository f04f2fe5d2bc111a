"""Random runs of the real coordinator and worker logic under a fake clock: each ends, and keeps to the laws."""

import os
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from flodl_core.local_options import LocalOptions
from flodl_core.simulation import Death, Moment, SimulationSpec
from tests.flodl_core.simulation.laws import check_completed, check_run
from tests.flodl_core.simulation.recording import Recording
from tests.flodl_core.simulation.specs import deaths, drifts, plain_time_s, specs

NUM_RUNS = int(os.environ.get("FLODL_RANDOM_RUNS", "2000"))
"""In all, over the properties of this file."""

ONE_BATCH_EACH = SimulationSpec(
    batch_ms=(1.0, 1.0),
    epoch_size=2,
    batch_size=1,
    num_epochs=5,
    options=LocalOptions(anchor=1, meets=False),
    average_ms=0.0,
    latency_ms=0.0,
)


@settings(max_examples=NUM_RUNS // 2)
@given(spec=specs(), drift=drifts())
def test_every_run_comes_to_its_end_with_each_sample_trained_once(spec: SimulationSpec, drift: float) -> None:
    check_completed(Recording(spec, drift=drift).run())


@settings(max_examples=NUM_RUNS // 8)
@given(spec=specs(), share=st.floats(0, 1.2))
def test_every_cancelled_run_ends(spec: SimulationSpec, share: float) -> None:
    check_run(Recording(replace(spec, cancel_at_s=share * plain_time_s(spec))).run())


@settings(max_examples=NUM_RUNS // 8)
@given(spec=specs(), share=st.floats(0.01, 1.2), steps=st.integers(1, 100))
def test_every_run_with_limits_ends_at_them(spec: SimulationSpec, share: float, steps: int) -> None:
    check_run(Recording(replace(spec, max_steps=steps)).run())
    check_run(Recording(replace(spec, max_time_s=share * plain_time_s(spec))).run())


@settings(max_examples=NUM_RUNS // 4)
@given(data=st.data(), spec=specs(), share=st.none() | st.floats(0, 1.2), steps=st.none() | st.integers(1, 100))
def test_every_run_that_loses_workers_ends(
    data: st.DataObject, spec: SimulationSpec, share: float | None, steps: int | None
) -> None:
    cancel_at_s = None if share is None else share * plain_time_s(spec)
    spec = replace(spec, deaths=data.draw(deaths(spec)), cancel_at_s=cancel_at_s, max_steps=steps)
    check_run(Recording(spec).run())


@example(at=3)
@given(at=st.integers(0, 20))
@settings(max_examples=20)
def test_worker_that_dies_taking_the_last_average_takes_nothing_with_it(at: int) -> None:
    death = Death(rank=0, moment=Moment.UPDATE, at=at)
    check_run(Recording(replace(ONE_BATCH_EACH, deaths=(death,))).run())
