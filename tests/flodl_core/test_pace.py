"""How long rounds are."""

import pytest

from flodl_core.pace import NUM_COSTS, Pace, RoundWork
from flodl_core.policies import ApplyPolicy
from flodl_core.rounds import NO_COUNT

BATCH_MS = {0: 10.0, 1: 25.0}


def _pace(policy: ApplyPolicy = ApplyPolicy.CADENCE, *, max_batch_diff: int | None = None) -> Pace:
    return Pace(2, policy=policy, anchor=10, max_anchor=200, overhead_target=0.03, max_batch_diff=max_batch_diff)


def _work(batch_ms: dict[int, float], *, num_batches: int = 10) -> RoundWork:
    work = RoundWork()
    for rank, ms in batch_ms.items():
        work.full_batches[rank] = num_batches
        work.full_ms[rank] = num_batches * ms
    return work


def test_cadence_gives_all_ranks_the_same_deadline_and_no_count() -> None:
    windows = _pace().windows([0, 1], BATCH_MS.__getitem__)
    assert windows.deadline_ms is not None
    assert 0.7 * 250 <= windows.deadline_ms <= 1.3 * 250
    assert windows.counts == {0: NO_COUNT, 1: NO_COUNT}
    assert windows.planned[0] == pytest.approx(2.5 * windows.planned[1], abs=1)


def test_async_gives_each_rank_its_count_and_no_deadline() -> None:
    windows = _pace(ApplyPolicy.ASYNC).windows([0, 1], BATCH_MS.__getitem__)
    assert windows.deadline_ms is None
    assert windows.counts == windows.planned


@pytest.mark.parametrize("policy", [ApplyPolicy.CADENCE, ApplyPolicy.ASYNC])
def test_no_rank_is_planned_further_ahead_than_allowed(policy: ApplyPolicy) -> None:
    windows = _pace(policy, max_batch_diff=3).windows([0, 1], BATCH_MS.__getitem__)
    assert windows.planned[0] - windows.planned[1] == 3
    assert windows.counts[0] == windows.planned[0]


def test_ranks_that_are_not_measured_have_no_limit() -> None:
    windows = _pace().unlimited([0, 1])
    assert windows.deadline_ms is None
    assert windows.counts == {0: NO_COUNT, 1: NO_COUNT}


def test_costly_averages_make_rounds_longer() -> None:
    pace = _pace()
    pace.close_round(_work(BATCH_MS), average_ms=25.0)
    assert pace.anchor > 10
    assert pace.batch_ms(1) == 25.0


def test_one_costly_average_among_cheap_ones_changes_nothing() -> None:
    pace = _pace()
    for _ in range(NUM_COSTS - 1):
        pace.close_round(_work(BATCH_MS), average_ms=1.0)
    pace.close_round(_work(BATCH_MS), average_ms=500.0)
    assert pace.anchor == 10


def test_a_round_that_an_epoch_cut_off_leaves_the_anchor_alone() -> None:
    pace = _pace()
    for _ in range(3):
        pace.close_round(_work(BATCH_MS, num_batches=10), average_ms=3.0)
    assert pace.anchor == 10
    pace.close_round(_work(BATCH_MS, num_batches=1), average_ms=3.0)  # 12 % of a round this short
    assert pace.anchor == 10


def test_a_first_round_that_an_epoch_cut_off_leaves_the_anchor_alone() -> None:
    pace = _pace()
    pace.close_round(_work(BATCH_MS, num_batches=1), average_ms=3.0)
    assert pace.anchor == 10


def test_a_whole_round_whose_average_costs_too_much_moves_the_anchor() -> None:
    pace = _pace()
    pace.close_round(_work(BATCH_MS, num_batches=10), average_ms=15.0)
    assert pace.anchor == 20
