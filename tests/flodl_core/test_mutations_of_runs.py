"""Checks of laws 1, 3, 4 and 6, of epochs, limits and figures, tried on runs of a product that is broken on purpose.

A case is a way to break the product, a run that shows it, and the check that is to notice. The same run of the product
as it is passes all checks.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest

from flodl_core.errors import SimulationError
from flodl_core.local_options import LocalOptions
from flodl_core.policies import ApplyPolicy
from flodl_core.simulation import Death, Moment, SimulationSpec, Stall
from tests.flodl_core import broken_rounds, broken_runs
from tests.flodl_core.broken_runs import Break
from tests.flodl_core.simulation import figures, laws, limits
from tests.flodl_core.simulation.recording import Recording

Check = Callable[[Recording], None]


class Case(NamedTuple):
    """Law broken, how it shows, and who is to notice."""

    break_it: Break
    spec: SimulationSpec
    check: Check
    drift: float = 0.0


CPU = SimulationSpec(
    batch_ms=(4.0, 7.0, 10.0),
    epoch_size=16 * 40 + 5,
    batch_size=16,
    num_epochs=2,
    options=LocalOptions(anchor=3),
    jitter=0.05,
    seed=1,
)
MEETS = replace(CPU, options=LocalOptions(anchor=3, meets=True))
SYNC = replace(CPU, options=LocalOptions(policy=ApplyPolicy.SYNC, meets=True))
RATIOS = replace(CPU, options=LocalOptions(anchor=3, partition_ratios=(3.0, 2.0, 1.0)))
LATE = replace(
    CPU,
    options=LocalOptions(anchor=3, snapshot_timeout_s=0.05),
    stalls=(Stall(rank=1, batch=12, ms=400.0),),
)
ALWAYS_LATE = replace(CPU, options=LocalOptions(anchor=3, snapshot_timeout_s=0.001), stall_ms=200.0)
CANCELLED = replace(CPU, cancel_at_s=0.1)
CANCELLED_SYNC = replace(SYNC, cancel_at_s=0.1)
DYING = replace(CPU, deaths=(Death(rank=1, moment=Moment.BATCH, at=5),))
TINY = replace(CPU, epoch_size=16, num_epochs=4, batch_ms=(1.0, 50.0))
WAITING = replace(
    CPU,
    batch_ms=(4.0, 4.0),
    options=LocalOptions(anchor=3, max_overshoot=1),
    stalls=(Stall(rank=1, batch=15, ms=100.0),),
)
THROTTLED = replace(CPU, options=LocalOptions(anchor=3, max_batch_diff=3))
DRIFTING = replace(CPU, options=LocalOptions(anchor=1, divergence_threshold=0.05), stall_ms=1.0)
STEPS = replace(CPU, max_steps=37)
STEPS_OF_SYNC = replace(SYNC, epoch_size=2, num_epochs=9, max_steps=5)
TIME = replace(CPU, max_time_s=1.0)


def _after_the_end() -> SimulationSpec:
    """A limit of time that passes while the workers end."""
    run = _recorded(replace(CPU, latency_ms=20.0), 0.0)
    last_epoch_s = max(event.time_s for event in run.events if type(event).__name__ == "EpochEnded")
    return replace(run.spec, max_time_s=(last_epoch_s + run.events[-1].time_s) / 2)


@cache
def _recorded(spec: SimulationSpec, drift: float) -> Recording:
    return Recording(spec, drift=drift).run()


def _cases(*cases: Case) -> list[object]:
    return [pytest.param(case, id=case.break_it.__name__) for case in cases]


NOTICED = _cases(
    Case(broken_runs.chunks_overlap, CPU, laws.check_nothing_twice),
    Case(broken_runs.chunks_overlap, CPU, laws.check_every_sample_once),
    Case(broken_runs.slices_overlap, RATIOS, laws.check_nothing_twice),
    Case(broken_runs.ranks_train_the_same_part_of_a_round, SYNC, laws.check_nothing_twice),
    Case(broken_runs.averages_forget_what_was_trained_after_the_snapshot, CPU, laws.check_averages_hold_everything),
    Case(broken_runs.averages_forget_what_was_trained_after_the_snapshot, CANCELLED, laws.check_result),
    Case(broken_runs.late_snapshots_are_forgotten, LATE, laws.check_averages_hold_everything),
    Case(broken_runs.what_was_averaged_is_entered_again, CPU, laws.check_averages_hold_everything),
    Case(broken_runs.what_was_averaged_is_entered_again, MEETS, laws.check_averages_hold_everything),
    Case(broken_runs.answers_to_one_rank_are_lost, CPU, laws.check_averages_hold_everything),
    Case(broken_runs.nobody_hands_in, CANCELLED, laws.check_result),
    Case(broken_runs.nobody_hands_in, DYING, laws.check_result),
    Case(broken_runs.one_rank_hands_in, CANCELLED, laws.check_result),
    Case(broken_runs.reports_are_counted_twice, CPU, laws.check_every_batch_counted),
    Case(broken_runs.reports_are_counted_twice, SYNC, laws.check_every_batch_counted),
    Case(broken_runs.reports_are_dropped, MEETS, laws.check_every_batch_counted),
    Case(broken_runs.reports_are_booked_for_another_rank, CPU, laws.check_every_batch_counted),
    Case(broken_runs.averages_are_counted_as_batches, CPU, laws.check_every_batch_counted),
    Case(broken_runs.averages_of_gradients_are_counted_as_batches, SYNC, laws.check_every_batch_counted),
    Case(broken_runs.global_step_lacks_late_ranks, LATE, laws.check_global_steps),
    Case(broken_rounds.rounds_are_skipped, MEETS, laws.check_rounds),
    Case(broken_rounds.averages_of_gradients_go_unreported, CANCELLED_SYNC, laws.check_rounds),
    Case(broken_rounds.epochs_begin_twice, CPU, laws.check_epochs),
    Case(broken_rounds.epochs_begin_twice, CANCELLED, laws.check_epochs_so_far),
    Case(broken_rounds.epochs_without_work_do_not_begin, TINY, laws.check_epochs),
    Case(broken_rounds.metrics_come_out_of_order, CPU, laws.check_epochs_so_far),
    Case(broken_rounds.epochs_are_reported_too_early, CPU, laws.check_epochs_so_far),
    Case(broken_rounds.ranks_are_told_to_end_twice, CPU, laws.check_told_to_end_once),
    Case(broken_rounds.failed_runs_call_themselves_completed, DYING, laws.check_status),
    Case(broken_rounds.training_goes_on_after_a_stop, CANCELLED, laws.check_ends_after_the_batch_under_way),
    Case(broken_rounds.overshoot_has_no_limit, WAITING, limits.check_overshoot),
    Case(broken_rounds.ranks_are_throttled_for_nothing, THROTTLED, limits.check_throttled),
    Case(broken_rounds.guard_never_holds, DRIFTING, limits.check_guard, drift=2.0),
    Case(broken_rounds.guard_holds_nothing, DRIFTING, limits.check_guard, drift=2.0),
    Case(broken_rounds.steps_are_not_limited, STEPS, limits.check_max_steps),
    Case(broken_rounds.rounds_count_as_a_step_of_each_rank, STEPS_OF_SYNC, limits.check_max_steps),
    Case(broken_rounds.step_windows_are_lost, CPU, figures.check_step_windows),
    Case(broken_rounds.efficiency_is_more_than_can_be, CPU, figures.check_times),
    Case(broken_rounds.shares_do_not_sum_to_one, CPU, figures.check_metrics),
    Case(broken_rounds.shares_are_of_other_ranks, CPU, figures.check_metrics),
    Case(broken_rounds.waits_are_negative, MEETS, figures.check_events),
)

STUCK = [
    pytest.param(broken_rounds.ends_of_windows_are_lost, MEETS, "stuck", id="ends_of_windows_are_lost"),
    pytest.param(broken_rounds.reports_are_lost, CPU, "stuck", id="reports_are_lost"),
    pytest.param(broken_rounds.reports_are_lost, SYNC, "stuck", id="reports_are_lost_in_sync"),
    pytest.param(broken_rounds.chunks_are_lost, CPU, "stuck", id="chunks_are_lost"),
    pytest.param(broken_rounds.chunks_are_lost, MEETS, "stuck", id="chunks_are_lost_before_a_meeting"),
    pytest.param(broken_rounds.chunks_are_lost, SYNC, "stuck", id="chunks_are_lost_in_sync"),
    pytest.param(broken_rounds.requests_are_lost, CPU, "not ended", id="requests_are_lost"),
    pytest.param(broken_rounds.deaths_are_lost, DYING, "not ended", id="deaths_are_lost"),
    pytest.param(broken_rounds.one_rank_is_not_released, MEETS, "stuck", id="one_rank_is_not_released"),
    pytest.param(broken_rounds.one_rank_is_not_released, SYNC, "stuck", id="one_rank_is_not_released_in_sync"),
    pytest.param(broken_rounds.rounds_do_not_open, MEETS, "stuck", id="rounds_do_not_open"),
    pytest.param(broken_rounds.one_rank_is_not_told_to_end, CPU, "stuck", id="one_rank_is_not_told_to_end"),
    pytest.param(broken_rounds.limits_of_snapshots_never_grow, ALWAYS_LATE, "not ended", id="limits_never_grow"),
]


@pytest.mark.parametrize("case", NOTICED)
def test_check_notices_a_run_that_is_broken(case: Case) -> None:
    laws.check_run(_recorded(case.spec, case.drift))
    case.check(_recorded(case.spec, case.drift))
    with pytest.MonkeyPatch.context() as patch:
        case.break_it(patch)
        run = Recording(case.spec, drift=case.drift).run()  # it is the check that raises, not the product by itself
        with pytest.raises(AssertionError):
            case.check(run)


@pytest.mark.parametrize(("break_it", "spec", "how"), STUCK)
def test_run_that_would_never_end_is_noticed(break_it: Break, spec: SimulationSpec, how: str) -> None:
    laws.check_run(_recorded(spec, 0.0))
    with pytest.MonkeyPatch.context() as patch:
        break_it(patch)
        with pytest.raises(SimulationError, match=how):
            Recording(spec).run()


def test_run_that_looks_at_the_clock_over_and_over_is_noticed() -> None:
    spec = _after_the_end()
    laws.check_run(_recorded(spec, 0.0))
    with pytest.MonkeyPatch.context() as patch:
        broken_rounds.limit_of_time_is_waited_for_after_the_end(patch)
        with pytest.raises(AssertionError, match="called for ever"):
            Recording(spec).run()
