"""The bar on a terminal."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from flodl_cli.live_progress import draw_progress, eta
from flodl_cli.progress import show_progress
from flodl_core import Progress, RunTotals
from flodl_store.params import RunParams
from flows.training import prepare, train


def progress(*, num_samples: int, epoch: int, loss: float) -> Progress:
    totals = RunTotals(
        num_samples=num_samples,
        num_batches=num_samples // 10,
        discarded_samples=0,
        wall_s=2.0,
        capacity_efficiency=0.973,
        rank_samples=(num_samples, 0),
        rank_batches=(num_samples // 10, 0),
        rank_busy_ms=(1.0, 0.0),
    )
    return Progress(
        epoch=epoch,
        epoch_samples=0,
        epoch_size=1000,
        num_epochs=4,
        totals=totals,
        rank_speeds=(12_345.0, 0.0),
        num_syncs=7,
        anchor=10,
        loss=loss,
    )


def drawn(moment: Progress, *, stopping: bool = False, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(draw_progress(moment, 30.0, stopping=stopping))
    return capture.get()


def test_the_bar_says_where_the_run_stands() -> None:
    text = drawn(progress(num_samples=1000, epoch=1, loss=0.25))
    assert "epoch 2/4" in text
    assert " 25%" in text
    assert "ETA 1:30" in text
    assert "loss 0.25  rank 0 12.3k/s  rank 1 0/s  7 averages  efficiency 97.3%" in text


def test_before_the_first_epochs_end_there_is_no_loss() -> None:
    text = drawn(progress(num_samples=0, epoch=0, loss=math.nan))
    assert "loss -" in text
    assert "ETA -" in text


def test_after_the_end_the_last_epoch_stays() -> None:
    text = drawn(progress(num_samples=4000, epoch=4, loss=0.1))
    assert "epoch 4/4" in text
    assert "100%" in text


def test_a_run_that_was_told_to_stop_says_so() -> None:
    assert "stopping" in drawn(progress(num_samples=10, epoch=0, loss=1.0), stopping=True)


def test_a_narrow_terminal_gets_no_more_lines() -> None:
    assert drawn(progress(num_samples=1000, epoch=1, loss=0.25), width=60).count("\n") == 2


@pytest.mark.parametrize(("share", "text"), [(0.0, "-"), (0.5, "10.0 s"), (1.0, "0.0 s")])
def test_the_time_left_goes_by_the_time_taken(share: float, text: str) -> None:
    assert eta(share, 10.0) == text


def test_a_run_draws_on_a_terminal(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    params = RunParams(recipe="digits", devices=("cpu", "cpu"), epochs=1)
    prepared = prepare(params, started_in=tmp_path_factory.getbasetemp())
    with show_progress(console, prepared.params, "THE-RUN", lambda: False) as watcher:
        train(prepared, watcher=watcher, stop_requested=lambda: False)
    assert "run THE-RUN: digits on cpu, cpu (cadence, cpu)" in file.getvalue()
    assert "epoch 1/1  loss " in file.getvalue()
    assert "ETA" in file.getvalue()
