from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.epoch_metrics import EpochMetrics, EpochTotals
from tests.reference_data import reference_cases


def _metrics(totals: EpochTotals, world_size: int, epoch: int = 0) -> EpochMetrics:
    return totals.metrics(
        epoch=epoch,
        epoch_ms=20.0,
        lr=0.1,
        devices=("cpu",) * world_size,
        capacity_efficiency=0.9,
        eval={"accuracy": 0.5},
    )


def _add(
    totals: EpochTotals,
    rank: int,
    *,
    batches: int = 1,
    samples: int = 1,
    busy_ms: float = 1.0,
    loss_sum: float = 0.0,
    scalars: Mapping[str, tuple[float, int]] | None = None,
) -> None:
    totals.add(
        rank, num_batches=batches, num_samples=samples, busy_ms=busy_ms, loss_sum=loss_sum, scalars=scalars or {}
    )


def _replayed(case: dict[str, Any]) -> EpochMetrics:
    """The reference weighs losses by batches: with batches of one sample each, ours do the same."""
    world_size = len(case["device_indices"])
    totals = EpochTotals(world_size)
    for rank, avg_loss, batches, busy_ms, _, scalars in case["msgs"]:
        _add(
            totals,
            min(rank, world_size - 1),  # the reference books a rank that does not exist for the last one
            batches=batches,
            samples=batches,
            busy_ms=busy_ms,
            loss_sum=avg_loss * batches,
            scalars={name: (value_sum, count) for name, (value_sum, count) in scalars.items()},
        )
    return _metrics(totals, world_size, case["epoch"])


def test_replays_the_reference() -> None:
    for case in reference_cases("epoch_metrics"):
        metrics, expected = _replayed(case), case["out"]
        assert metrics.epoch == expected["epoch"]
        assert metrics.avg_loss == pytest.approx(expected["avg_loss"], rel=1e-9)
        assert metrics.scalars == pytest.approx(expected["scalars"], rel=1e-9)
        assert len(metrics.per_rank) == len(expected["per_rank"])
        for ours, theirs in zip(metrics.per_rank, expected["per_rank"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)


def test_losses_are_weighted_by_samples_where_batches_differ_in_size() -> None:
    totals = EpochTotals(2)
    _add(totals, 0, samples=64, loss_sum=64.0)
    _add(totals, 1, samples=16, loss_sum=48.0)
    metrics = _metrics(totals, 2)
    assert metrics.avg_loss == pytest.approx(112 / 80)
    assert metrics.per_rank_loss == pytest.approx((1.0, 3.0))


def test_time_of_a_rank_is_the_sum_of_its_chunks() -> None:
    totals = EpochTotals(1)
    _add(totals, 0, samples=30, busy_ms=10.0)
    _add(totals, 0, samples=30, busy_ms=20.0)
    metrics = _metrics(totals, 1)
    assert metrics.per_rank_busy_ms == (30.0,)
    assert metrics.per_rank_throughput == (2.0,)


def test_rank_without_work_has_no_loss_and_no_share() -> None:
    totals = EpochTotals(2)
    _add(totals, 0, batches=3, samples=30, loss_sum=15.0)
    metrics = _metrics(totals, 2)
    assert metrics.avg_loss == 0.5
    assert math.isnan(metrics.per_rank_loss[1])
    assert metrics.per_rank_throughput[1] == 0.0
    assert metrics.per_rank_batch_share == (1.0, 0.0)


def test_scalar_that_one_rank_recorded_is_absent_on_the_others() -> None:
    totals = EpochTotals(2)
    _add(totals, 0, batches=4, scalars={"accuracy": (1.0, 2)})
    _add(totals, 1, batches=9)
    metrics = _metrics(totals, 2)
    assert metrics.scalars == {"accuracy": 0.5}
    assert metrics.per_rank == ({"accuracy": 0.5}, {})


def test_what_the_totals_do_not_hold_is_passed_through() -> None:
    metrics = _metrics(EpochTotals(1), 1, epoch=7)
    assert (metrics.epoch, metrics.epoch_ms, metrics.lr, metrics.devices) == (7, 20.0, 0.1, ("cpu",))
    assert (metrics.capacity_efficiency, metrics.eval) == (0.9, {"accuracy": 0.5})
    assert (metrics.num_batches, metrics.num_samples, metrics.avg_loss) == (0, 0, 0.0)


def test_loss_that_is_not_a_number_shows() -> None:
    totals = EpochTotals(2)
    _add(totals, 0, loss_sum=math.nan)
    _add(totals, 1, loss_sum=1.0)
    metrics = _metrics(totals, 2)
    assert math.isnan(metrics.avg_loss)
    assert metrics.per_rank_loss[1] == 1.0


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 99), st.floats(0.1, 99.0), st.floats(-9.0, 9.0)),
        min_size=1,
    )
)
def test_rank_figures_add_up_to_the_epochs(reports: list[tuple[int, int, int, float, float]]) -> None:
    totals = EpochTotals(4)
    for rank, batches, samples, busy_ms, loss in reports:
        _add(totals, rank, batches=batches, samples=samples, busy_ms=busy_ms, loss_sum=loss * samples)
    metrics = _metrics(totals, 4)
    assert metrics.num_batches == sum(batches for _, batches, _, _, _ in reports)
    assert metrics.num_samples == sum(samples for _, _, samples, _, _ in reports)
    assert sum(metrics.per_rank_batch_share) == pytest.approx(1.0)
    trained = zip(metrics.per_rank_throughput, metrics.per_rank_busy_ms, strict=True)
    assert sum(throughput * busy_ms for throughput, busy_ms in trained) == pytest.approx(metrics.num_samples)
    losses = [loss for *_, loss in reports]
    assert min(losses) - 1e-9 <= metrics.avg_loss <= max(losses) + 1e-9


def test_world_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="world_size"):
        EpochTotals(0)
