"""Random runs of the real coordinator and worker logic under a fake clock: each ends, and keeps to the laws."""

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flodl_core.local_options import LocalOptions
from flodl_core.simulation import Death, Moment, SimulationSpec
from tests.flodl_core.simulation.laws import check_completed, check_run
from tests.flodl_core.simulation.recording import Recording
from tests.flodl_core.simulation.specs import DRIFTS, cancelled_run, deadly_run, limited_run, runs, whole_run

NUM_RUNS = int(os.environ.get("FLODL_RANDOM_RUNS", "2000"))
"""In all, over the properties of this file."""

pytestmark = pytest.mark.timeout(max(300, NUM_RUNS // 10))  # many runs take long: that is no hang


def share_of_runs(share: float) -> settings:
    """That share of the examples; a machine that is slow to draw them is not a failure."""
    return settings(max_examples=round(share * NUM_RUNS), suppress_health_check=[HealthCheck.too_slow])


ONE_BATCH_EACH = SimulationSpec(
    batch_ms=(1.0, 1.0),
    epoch_size=2,
    batch_size=1,
    num_epochs=5,
    options=LocalOptions(anchor=1, meets=False),
    average_ms=0.0,
    latency_ms=0.0,
)


@share_of_runs(1 / 2)
@given(spec=runs(whole_run), drift=st.sampled_from(DRIFTS))
def test_every_run_comes_to_its_end_with_each_sample_trained_once(spec: SimulationSpec, drift: float) -> None:
    check_completed(Recording(spec, drift=drift).run())


@share_of_runs(1 / 8)
@given(spec=runs(cancelled_run))
def test_every_cancelled_run_ends(spec: SimulationSpec) -> None:
    check_run(Recording(spec).run())


@share_of_runs(1 / 8)
@given(spec=runs(limited_run))
def test_every_run_with_limits_ends_at_them(spec: SimulationSpec) -> None:
    check_run(Recording(spec).run())


@share_of_runs(1 / 4)
@given(spec=runs(deadly_run))
def test_every_run_that_loses_workers_ends(spec: SimulationSpec) -> None:
    check_run(Recording(spec).run())


@pytest.mark.parametrize("at", range(8))
def test_worker_that_dies_taking_the_last_average_takes_nothing_with_it(at: int) -> None:
    death = Death(rank=0, moment=Moment.UPDATE, at=at)
    check_run(Recording(replace(ONE_BATCH_EACH, deaths=(death,))).run())
