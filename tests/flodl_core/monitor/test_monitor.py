"""A monitor's lines and files, and that it does no harm to the run that it watches."""

from __future__ import annotations

import csv
import io
import logging
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import Tensor, nn

from flodl_core import ConfigError, EpochMetrics, Monitor, record_scalar
from flodl_core.html_page import facts
from flodl_core.monitor.lines import epoch_line, seconds_left, summary_line
from flodl_core.monitor.page import Subject, render
from tests.flodl_core.training import LIMIT_S, Samples, configure, mean_squared_error, numbered_samples


def metrics(
    epoch: int,
    *,
    loss: float = 0.5,
    epoch_ms: float = 2000.0,
    eval_: dict[str, float] | None = None,
    scalars: dict[str, float] | None = None,
    devices: Sequence[str] = ("cpu", "cpu@2.5"),
) -> EpochMetrics:
    """An epoch that two ranks shared three to one."""
    num_ranks = len(devices)
    return EpochMetrics(
        epoch=epoch,
        avg_loss=loss,
        epoch_ms=epoch_ms,
        scalars=scalars or {},
        per_rank=({},) * num_ranks,
        per_rank_loss=(loss,) * num_ranks,
        per_rank_throughput=(2.0,) * num_ranks,
        per_rank_batch_share=(1.0 / num_ranks,) * num_ranks,
        per_rank_busy_ms=(1900.0,) * num_ranks,
        devices=tuple(devices),
        lr=0.1,
        num_batches=100,
        num_samples=6000,
        capacity_efficiency=0.971,
        eval=eval_ or {},
    )


# Lines


def test_a_line_tells_what_counts_and_how_long_it_will_take() -> None:
    history = [metrics(0), metrics(1, loss=0.25, eval_={"accuracy": 0.93}, scalars={"norm": 1.5})]
    assert epoch_line(history, 10, None) == (
        "epoch  2/10  loss 0.25  eval accuracy 0.93  2.0 s  ETA 16.0 s  3,000 samples/s  capacity 97.1 %  norm 1.5"
    )


def test_on_a_narrow_terminal_the_least_important_is_left_out() -> None:
    line = epoch_line([metrics(0, eval_={"accuracy": 0.93})], 10, 60)
    assert line == "epoch  1/10  loss 0.5  eval accuracy 0.93  2.0 s  ETA 18.0 s"
    assert epoch_line([metrics(0)], 10, 8) == "epoch  …"


def test_the_time_left_follows_the_latest_epochs() -> None:
    slow_start = [metrics(0, epoch_ms=60_000.0), *(metrics(epoch, epoch_ms=1000.0) for epoch in range(1, 6))]
    assert seconds_left(slow_start, 10) == 4.0
    assert seconds_left(slow_start, 6) is None
    assert seconds_left(slow_start, None) is None
    assert seconds_left([], 6) is None


def test_the_last_line_tells_how_the_run_went() -> None:
    history = [metrics(0, loss=math.nan), metrics(1, loss=0.25), metrics(2, loss=0.5)]
    assert summary_line(history, 3, None) == "3 epochs in 6.0 s  loss 0.5 (lowest 0.25 in epoch 2)"
    assert summary_line(history, 8, None).startswith("3 of 8 epochs")
    assert summary_line(history[:1], 1, None) == "1 epoch in 2.0 s  loss nan (lowest nan in epoch 1)"
    assert summary_line([], 3, None) == "no epoch was completed"


def test_a_name_cannot_move_the_cursor() -> None:
    line = epoch_line([metrics(0, eval_={"\x1b[2J\nacc": 0.5})], None, None)
    assert "\x1b" not in line
    assert "\n" not in line


@pytest.mark.parametrize("num_epochs", [0, -1])
def test_a_number_of_epochs_that_cannot_be_is_refused(num_epochs: int) -> None:
    with pytest.raises(ConfigError, match="num_epochs"):
        Monitor(num_epochs)


# Where lines go


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class BrokenPipe(io.StringIO):
    """A stream whose reader has gone."""

    num_writes = 0

    def write(self, text: str) -> int:
        self.num_writes += 1
        raise BrokenPipeError(f"cannot write {len(text)} characters")


def test_lines_keep_within_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        Monitor(10, stream=stream).log(metrics(0))
    assert len(terminal.getvalue()) <= 41 < len(file.getvalue())


def test_lines_may_go_to_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(1, log=logging.getLogger("mine"))
    with caplog.at_level(logging.INFO, logger="mine"):
        monitor.log(metrics(0))
        monitor.finish()
        monitor.finish()
    assert [record.message.split("  ")[0] for record in caplog.records] == ["epoch 1/1", "1 epoch in 2.0 s"]


def test_a_stream_that_cannot_be_written_is_given_up_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    broken = BrokenPipe()
    monitor = Monitor(stream=broken)
    for epoch in range(3):
        monitor.log(metrics(epoch))
    monitor.finish()
    assert broken.num_writes == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert len(monitor.history) == 3


def test_a_closed_stream_does_no_harm() -> None:
    stream = io.StringIO()
    stream.close()
    monitor = Monitor(stream=stream)
    monitor.log(metrics(0))
    assert len(monitor.history) == 1


def test_letters_that_a_stream_does_not_have_are_replaced() -> None:
    bytes_written = io.BytesIO()
    monitor = Monitor(stream=io.TextIOWrapper(bytes_written, encoding="ascii"))
    monitor.log(metrics(0, eval_={"précision": 0.5}))
    assert b"eval pr?cision 0.5" in bytes_written.getvalue()


# Real runs


def test_it_watches_a_run_to_its_end(tmp_path: Path) -> None:
    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        loss = mean_squared_error(model, batch)
        record_scalar("=cmd()", loss.detach())
        return loss

    out = io.StringIO()
    monitor = Monitor(stream=out)
    builder = configure(numbered_samples(64), train_fn=train_fn, num_epochs=3, devices=["cpu", "cpu@2.5"])
    with builder.eval_fn(lambda _: {"<img src=x>": 1.0}).run() as handle:
        monitor.watch(handle)
        handle.join(LIMIT_S)
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines[:3]] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert lines[3].startswith("3 epochs in ")
    assert ["ETA" in line for line in lines] == [True, True, False, False]

    monitor.save_log(tmp_path / "run.log")
    assert (tmp_path / "run.log").read_text() == out.getvalue()

    monitor.save_csv(tmp_path / "run.csv")
    rows = list(csv.DictReader((tmp_path / "run.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert [float(row["avg_loss"]) for row in rows] == [m.avg_loss for m in monitor.history]
    assert {"eval <img src=x>", "scalar =cmd()", "rank 1 batch_share"} <= set(rows[0])

    monitor.save_html(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert "Linear: " in page
    assert "&lt;img src=x&gt; (eval)" in page
    assert "<img src=x>" not in page
    assert "<script" not in page
    assert "<dt>policy</dt><dd>cadence</dd>" in page


def test_it_is_set_up_by_a_handle_and_fed_by_hand() -> None:
    out = io.StringIO()
    monitor = Monitor(stream=out)
    with configure(numbered_samples(32), num_epochs=2, devices=["cpu"]).run() as handle:
        handle.setup_monitor(monitor)
        for epoch in handle.metrics():
            monitor.log(epoch)
        handle.join(LIMIT_S)
    assert out.getvalue().startswith("epoch 1/2  loss ")


def test_it_may_be_a_metrics_fn_and_its_broken_stream_does_not_stop_the_run() -> None:
    monitor = Monitor(stream=BrokenPipe())
    with configure(numbered_samples(32), num_epochs=2).metrics_fn(monitor.log).run() as handle:
        handle.join(LIMIT_S)
        assert handle.status == "completed"
    assert [epoch.epoch for epoch in monitor.history] == [0, 1]


def test_a_run_that_ends_early_has_files_too(tmp_path: Path) -> None:
    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        raise RuntimeError("no")

    out = io.StringIO()
    monitor = Monitor(stream=out)
    with configure(numbered_samples(32), train_fn=train_fn).run() as handle:
        monitor.watch(handle)
    assert out.getvalue() == "no epoch was completed\n"
    monitor.save_csv(tmp_path / "run.csv")
    monitor.save_html(tmp_path / "run.html")
    assert (tmp_path / "run.csv").read_text().startswith("epoch,avg_loss,")
    assert "no epoch was completed" in (tmp_path / "run.html").read_text()


# The page


def subject(num_epochs: int | None = None) -> Subject:
    return Subject(num_epochs=num_epochs, training_meta={"seed": 1, "amp": None}, graph=None, graph_error="why not")


def test_a_page_draws_around_what_is_not_a_number() -> None:
    history = [metrics(0), metrics(1, loss=math.nan), metrics(2, loss=math.inf), metrics(3, loss=0.25)]
    page = render(history, subject(4))
    assert "loss is not finite in epoch 2, 3." in page
    assert re.findall(r' d="[^"]*(?:nan|inf)', page) == []
    assert "why not" in page
    assert "<dt>amp</dt>" not in page


def test_a_page_of_many_ranks_draws_the_mean_and_lists_the_ranks() -> None:
    devices = [f"cpu@{rank + 1}" for rank in range(16)]
    page = render([metrics(0, devices=devices), metrics(1, devices=devices)], subject())
    assert page.count('class="key"') == 1
    assert all(f"<td>{device}</td>" in page for device in devices)


def test_a_long_fact_has_a_line_for_itself() -> None:
    told = facts([("seed", 1), ("devices", "cpu, " * 16)])
    assert told.count('<div class="long"><dt>devices</dt>') == 1
    assert "<div><dt>seed</dt><dd>1</dd></div>" in told


def test_an_epoch_alone_is_a_dot() -> None:
    page = render([metrics(0)], subject(1))
    assert "h.1" in page
    assert "1 epoch in 2.0 s, loss 0.5" in page
