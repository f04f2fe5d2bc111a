from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.events import Event, StepWindow
from flodl_core.idle_time import IdleMs
from flodl_core.run_book import STEP_WINDOW_S, RunBook, RunTotals
from tests.flodl_core.message_factories import report

START_S = 100.0


def _book(world_size: int = 2) -> RunBook:
    return RunBook([f"cpu{rank}" for rank in range(world_size)], start_s=START_S)


def test_reports_gather_in_a_step_window_until_its_time_is_up() -> None:
    book = _book()
    first = report(0, 2, loss=1.0, lr=0.1, start_s=START_S, idle=IdleMs(sync=1.0, load=4.0))
    last = report(0, 1, num_samples=4, loss=4.0, lr=0.05, start_s=START_S + 0.21, idle=IdleMs(wait=2.0))
    assert list(book.add(first, START_S)) == []
    assert list(book.add(report(1, 4), START_S + STEP_WINDOW_S - 0.01)) == []
    (window,) = book.add(last, START_S + 0.25)
    assert isinstance(window, StepWindow)
    window = replace(window, end_s=round(window.end_s, 9))
    assert window == StepWindow(
        time_s=0.25,
        rank=0,
        epoch=0,
        global_step=7,
        loss=32 / 20,
        lr=0.05,
        samples_per_s=1e3 * 20 / 30,
        num_batches=3,
        num_samples=20,
        busy_ms=30.0,
        start_s=0.0,
        end_s=0.22,
        idle=IdleMs(sync=1.0, wait=2.0, load=4.0),
    )


def test_step_window_ends_with_its_epoch() -> None:
    book = _book()
    book.add(report(0, 2, epoch=0), START_S)
    (window,) = book.add(report(0, 1, epoch=1), START_S + 0.05)
    assert isinstance(window, StepWindow)
    assert (window.epoch, window.num_batches) == (0, 2)
    assert window.time_s == pytest.approx(0.05)
    (rest,) = book.close_windows(START_S + 0.06)
    assert isinstance(rest, StepWindow)
    assert (rest.epoch, rest.num_batches) == (1, 1)


def test_open_windows_are_closed_in_rank_order_and_once() -> None:
    book = _book(3)
    for rank in (2, 0):
        book.add(report(rank), START_S)
    windows = book.close_windows(START_S + 0.1)
    assert [window.rank for window in windows if isinstance(window, StepWindow)] == [0, 2]
    assert book.close_windows(START_S + 0.2) == []


def test_loss_that_is_not_a_number_is_shown_as_it_is() -> None:
    book = _book()
    (window,) = [*book.add(report(0, loss=math.nan), START_S), *book.close_windows(START_S)]
    assert isinstance(window, StepWindow)
    assert math.isnan(window.loss)


def test_window_without_busy_time_has_no_speed() -> None:
    book = _book()
    book.add(report(0, ms=0.0), START_S)
    (window,) = book.close_windows(START_S)
    assert isinstance(window, StepWindow)
    assert window.samples_per_s == 0.0
    assert book.rank_speeds() == {}


def test_epoch_metrics_are_the_sum_of_the_epochs_reports() -> None:
    book = _book()
    book.add(report(0, 3, loss=1.0, scalars={"acc": (3.0, 3)}, start_s=101.0), 101.1)
    book.add(report(1, 1, loss=5.0, scalars={"acc": (0.0, 1)}, ms=30.0, start_s=101.0), 101.1)
    book.add(report(0, 1, epoch=1, lr=0.02, start_s=101.03), 101.2)
    metrics = book.end_epoch(0)
    assert (metrics.epoch, metrics.num_batches, metrics.num_samples) == (0, 4, 32)
    assert metrics.avg_loss == pytest.approx(2.0)
    assert metrics.per_rank_loss == pytest.approx((1.0, 5.0))
    assert metrics.scalars == {"acc": pytest.approx(0.75)}
    assert metrics.per_rank == ({"acc": 1.0}, {"acc": 0.0})
    assert metrics.per_rank_busy_ms == (30.0, 30.0)
    assert metrics.per_rank_batch_share == (0.75, 0.25)
    assert metrics.devices == ("cpu0", "cpu1")
    assert metrics.lr == 0.02
    assert metrics.epoch_ms == pytest.approx(40.0)
    assert metrics.eval == {}


def test_epochs_time_runs_from_the_end_of_the_epoch_before() -> None:
    book = _book(1)
    book.add(report(0, 2, start_s=101.0), 101.02)
    assert book.end_epoch(0).epoch_ms == pytest.approx(20.0)
    book.add(report(0, 1, epoch=1, start_s=101.07), 101.08)
    second = book.end_epoch(1)
    assert second.epoch_ms == pytest.approx(60.0)  # the 50 ms without work count
    assert second.capacity_efficiency == pytest.approx(10 / 60)


def test_epoch_ends_with_its_last_sample_however_late_its_average_is() -> None:
    book = RunBook(["cpu"], start_s=START_S, epoch_size=16)
    book.add(report(0, 2, epoch=0, start_s=101.0), 101.02)
    book.add(report(0, 2, epoch=1, start_s=101.07), 101.09)  # while the average is computed
    first, second = book.end_epoch(0), book.end_epoch(1)
    assert first.epoch_ms == pytest.approx(20.0)
    assert first.capacity_efficiency == pytest.approx(1.0)
    assert second.epoch_ms == pytest.approx(70.0)
    assert second.capacity_efficiency == pytest.approx(20 / 70)


def test_epochs_that_end_together_share_their_time_and_efficiency() -> None:
    book = RunBook(["cpu0", "cpu1"], start_s=START_S, epoch_size=16)
    book.add(report(1, 2, epoch=1, start_s=101.0), 101.02)  # ahead of the first, which has not ended yet
    book.add(report(0, 2, epoch=0, start_s=101.0), 101.02)
    book.add(report(0, 2, epoch=2, start_s=101.05), 101.07)
    epochs = [book.end_epoch(epoch) for epoch in range(3)]
    assert [epoch.epoch_ms for epoch in epochs] == pytest.approx([10.0, 10.0, 50.0])
    assert [epoch.capacity_efficiency for epoch in epochs] == pytest.approx([1.0, 1.0, 20 / 50])
    assert sum(epoch.epoch_ms for epoch in epochs) == pytest.approx(1e3 * book.totals().wall_s)


def test_epoch_that_was_trained_beside_the_one_before_was_as_efficient() -> None:
    book = RunBook(["cpu0", "cpu1"], start_s=START_S, epoch_size=16)
    book.add(report(0, 2, epoch=0, start_s=101.02), 101.04)
    book.add(report(1, 2, epoch=1, start_s=101.0), 101.05)  # reported later, though it ended before
    epochs = [book.end_epoch(epoch) for epoch in range(2)]
    assert [epoch.epoch_ms for epoch in epochs] == pytest.approx([20.0, 0.0])
    assert epochs[1].capacity_efficiency == epochs[0].capacity_efficiency == pytest.approx(1.0)


def test_efficiency_compares_with_ranks_that_never_wait() -> None:
    book = _book()
    # in 40 ms rank 0 does 4 batches of 10 ms; rank 1 could do 2 of 20 ms, does 1 and waits
    book.add(report(0, 4, ms=10.0, start_s=101.0), 101.04)
    book.add(report(1, 1, ms=20.0, start_s=101.0), 101.04)
    assert book.end_epoch(0).capacity_efficiency == pytest.approx(5 / 6)
    assert book.totals().capacity_efficiency == pytest.approx(5 / 6)


def test_epoch_of_which_nothing_was_reported_is_empty() -> None:
    metrics = _book().end_epoch(0)
    assert (metrics.num_samples, metrics.epoch_ms, metrics.capacity_efficiency) == (0, 0.0, 0.0)


def test_totals_before_the_first_report_are_zero() -> None:
    book = _book()
    assert book.totals() == RunTotals(
        num_samples=0,
        num_batches=0,
        discarded_samples=0,
        wall_s=0.0,
        capacity_efficiency=0.0,
        rank_samples=(0, 0),
        rank_batches=(0, 0),
        rank_busy_ms=(0.0, 0.0),
    )
    assert book.rank_speeds() == {}


def test_totals_span_all_epochs_from_the_first_start_to_the_last_end() -> None:
    book = _book()
    book.discarded_samples += 8
    book.add(report(1, 1, ms=20.0, start_s=101.01), 101.1)
    book.add(report(0, 2, ms=10.0, start_s=101.0), 101.1)
    book.end_epoch(0)
    book.add(report(0, 1, epoch=1, start_s=101.04), 101.1)
    totals = book.totals()
    assert (totals.num_samples, totals.num_batches, totals.discarded_samples) == (32, 4, 8)
    assert totals.wall_s == pytest.approx(0.05)
    assert (totals.rank_samples, totals.rank_batches, totals.rank_busy_ms) == ((24, 8), (3, 1), (30.0, 20.0))
    assert book.global_step == 4
    assert book.rank_speeds() == pytest.approx({0: 800.0, 1: 400.0})


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 4), st.floats(0.0, 0.3)), max_size=40))
def test_step_windows_hold_every_batch_once_and_at_most_five_a_second(
    reports: list[tuple[int, int, int, float]],
) -> None:
    book, now_s = _book(3), START_S
    windows: list[Event] = []
    for rank, epoch, num_batches, pause_s in reports:
        now_s += pause_s
        windows += book.add(report(rank, num_batches, epoch=epoch), now_s)
    windows += book.close_windows(now_s)
    steps = [window for window in windows if isinstance(window, StepWindow)]
    assert len(steps) == len(windows)
    assert sum(step.num_batches for step in steps) == book.global_step == sum(each[2] for each in reports)
    for rank in range(3):
        for epoch in range(3):
            done = sum(each[2] for each in reports if each[:2] == (rank, epoch))
            assert sum(s.num_batches for s in steps if (s.rank, s.epoch) == (rank, epoch)) == done
