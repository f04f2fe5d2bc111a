"""What a simulated run says of itself: its events, its metrics and where its time went."""

import math
from collections import Counter

from flodl_core.events import RunEnded, RunStarted, StepWindow
from flodl_core.simulation.worker import Activity
from tests.flodl_core.simulation.recording import Recording

MOST_EFFICIENT = 1.02
ROUNDING = 1e-6


def check_events(run: Recording) -> None:
    """Events come in order of time, from the start to the end, and waits are not negative."""
    assert isinstance(run.events[0], RunStarted)
    assert isinstance(run.events[-1], RunEnded)
    assert sum(isinstance(event, RunStarted | RunEnded) for event in run.events) == 2
    assert run.events[-1].status == run.status
    times = [event.time_s for event in run.events]
    assert times == sorted(times), "events go back in time"
    for event in run.syncs:
        assert event.duration_ms >= 0
        assert all(wait_ms >= 0 for wait_ms in event.wait_ms.values()), "a rank waited for less than no time"
    check_step_windows(run)


def check_step_windows(run: Recording) -> None:
    """Each batch is in one window of its rank and epoch."""
    windows: Counter[tuple[int, int]] = Counter()
    for event in run.events:
        if isinstance(event, StepWindow):
            windows[event.rank, event.epoch] += event.num_batches
            assert event.num_batches > 0
            assert event.start_s <= event.end_s <= event.time_s + ROUNDING
    assert windows == Counter((batch.rank, batch.epoch) for batch in run.batches), "step windows miss or repeat batches"


def check_metrics(run: Recording) -> None:
    """Metrics of an epoch agree with its batches; shares sum to 1; nobody is more efficient than can be."""
    by_epoch = run.by_epoch()
    for metrics in run.simulation.epochs:
        batches = by_epoch[metrics.epoch]
        counts = Counter(batch.rank for batch in batches)
        ranks = range(run.spec.world_size)
        assert metrics.num_batches == len(batches), f"epoch {metrics.epoch} counts {metrics.num_batches} batches"
        assert metrics.num_samples == sum(batch.size for batch in batches)
        assert math.isclose(sum(metrics.per_rank_batch_share), 1.0)
        expected = [counts[rank] / len(batches) for rank in ranks]
        assert all(map(math.isclose, metrics.per_rank_batch_share, expected)), "a share is not that of the batches"
        busy_ms = [sum(batch.busy_ms for batch in batches if batch.rank == rank) for rank in ranks]
        assert all(map(math.isclose, metrics.per_rank_busy_ms, busy_ms)), "busy time is not that of the batches"
        assert metrics.epoch_ms >= 0
        assert 0 < metrics.capacity_efficiency <= MOST_EFFICIENT


def check_times(run: Recording) -> None:
    """Epochs take no more time than the run; a rank's time is where its batches were, and never negative."""
    totals = run.simulation.coordinator.book.totals()
    assert (0 < totals.capacity_efficiency <= MOST_EFFICIENT) == (run.num_batches > 0)
    epochs_s = sum(metrics.epoch_ms for metrics in run.simulation.epochs) / 1e3
    assert epochs_s <= totals.wall_s + ROUNDING
    for worker in run.simulation.workers:
        assert all(spent_s >= -ROUNDING for spent_s in worker.spent_s.values()), (
            f"rank {worker.rank} spent less than none"
        )
        assert math.isclose(sum(worker.spent_s.values()), run.simulation.clock.now_s, rel_tol=ROUNDING)
        busy_s = sum(batch.busy_ms for batch in run.batches if batch.rank == worker.rank) / 1e3
        if worker.rank not in run.lost:
            assert math.isclose(worker.spent_s[Activity.TRAIN], busy_s, rel_tol=ROUNDING)
