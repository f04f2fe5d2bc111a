"""The run page in a real browser, against the real server, over a store that somebody writes to."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from flodl_store.database import Database, open_database
from flodl_store.rows import NewEvent
from flodl_store.run_progress import RunProgress
from flodl_store.runs import cancel_requested, end_run, start_run
from flodl_store.writer import RunWriter
from tests.dashboard.browser import Visitor, loss_points, plotted, show_raw, wait_for_cursor
from tests.dashboard.run_rows import some_steps, stored_points
from tests.dashboard.server_process import ServerProcess
from tests.flodl_store.rows import START, epoch, new_run, running, step

PROGRESS = RunProgress(
    epoch=1,
    avg_loss=0.5,
    num_samples=96,
    num_batches=6,
    num_syncs=1,
    capacity_efficiency=0.98,
    anchor=10,
    global_step=6,
    wall_s=1.5,
)
SYNC = NewEvent(
    kind="sync",
    rank=None,
    time_s=0.5,
    wall_time=datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC),
    payload={
        "round": 1,
        "epoch": None,
        "global_step": 4,
        "num_syncs": 1,
        "duration_ms": 3.25,
        "wait_ms": {"0": 0.1, "1": 0.2},
        "weights": {"0": 32, "1": 32},
        "divergence": {"0": 0.02, "1": 0.04},
        "excluded": [],
        "anchor": 10,
    },
)


@pytest.fixture(autouse=True)
def home(shared_server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one that all tests of this file share with their server: each has a run of its own."""
    monkeypatch.setenv("FLODL_HOME", str(shared_server.home))
    return shared_server.home


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return shared_server


def text_of(page: Page, selector: str) -> str:
    return page.locator(selector).inner_text()


def test_points_arrive_during_a_run(visit: Visitor, db: Database) -> None:
    run_id = running(db)
    writer = RunWriter(db, run_id)
    page = visit.open(f"/runs/{run_id}")
    wait_for_cursor(page, 0)
    expect(page.locator("#status")).to_have_text("Running")
    for first in range(0, 30, 10):
        writer.write([*some_steps(first, first + 10)])
        wait_for_cursor(page, writer.last_seq)
    show_raw(page)
    page.wait_for_function("() => document.getElementById('loss-chart').data?.length > 0")
    assert loss_points(page) == stored_points(db, run_id)
    writer.write([SYNC, epoch(0)], progress=PROGRESS)
    end_run(db, run_id, "completed")
    wait_for_cursor(page, writer.last_seq)
    expect(page.locator("#status")).to_have_text("Completed")
    expect(page.locator("#epochs tbody tr")).to_have_count(1)
    assert "90.00 %" in text_of(page, "#epochs")
    (ticks,) = [trace for trace in plotted(page)["loss"] if (trace["meta"] or {}).get("kind") == "sync"]
    assert (ticks["x"], ticks["y"]) == ([4], [0.04])
    assert "3.3 ms" in ticks["text"][0] or "3.2 ms" in ticks["text"][0]


def test_a_late_comer_sees_the_same(visit: Visitor, db: Database) -> None:
    run_id = running(db)
    writer = RunWriter(db, run_id)
    early = visit.open(f"/runs/{run_id}")
    wait_for_cursor(early, 0)
    for first in range(0, 40, 8):
        writer.write([*some_steps(first, first + 8), replace(SYNC, time_s=first / 8), epoch(first // 8)])
        wait_for_cursor(early, writer.last_seq)
    writer.write([], progress=PROGRESS)
    end_run(db, run_id, "completed")
    late = visit.open(f"/runs/{run_id}")
    for page in (early, late):
        wait_for_cursor(page, writer.last_seq)
        expect(page.locator("#status")).to_have_text("Completed")
        expect(page.locator("#run-header [data-figures]")).to_contain_text("took")
        page.wait_for_function("() => document.getElementById('eval-chart').data?.length > 0")
    # The last redraw may still be on its way: what differs then comes out even in a moment.
    early.wait_for_function("charts => JSON.stringify(window.plottedNow()) === charts", arg=_charts(late, early))
    assert plotted(early) == plotted(late)
    for part in ("#run-header [data-figures]", "#epochs", "#events", "#workers", "#config"):
        assert text_of(early, part) == text_of(late, part)


def _charts(page: Page, other: Page) -> str:
    for each in (page, other):
        each.evaluate("""() => { window.plottedNow = () => ["loss", "throughput", "share", "eval"]
            .map((name) => document.getElementById(`${name}-chart`).data.map(({ x, y }) => [x, y])); }""")
    charts: str = page.evaluate("() => JSON.stringify(window.plottedNow())")
    return charts


def test_nan_and_infinity_are_marks_and_no_line_runs_over_them(visit: Visitor, db: Database) -> None:
    run_id = running(db)
    losses = [1.0, 1.0, math.nan, 0.5, math.inf, 0.4]
    RunWriter(db, run_id).write([step(number, rank=0, loss=loss) for number, loss in enumerate(losses)])
    page = visit.open(f"/runs/{run_id}")
    wait_for_cursor(page, 6)
    page.wait_for_function("() => document.getElementById('loss-chart').data?.length > 0")
    show_raw(page)
    assert [y for _, _, y in loss_points(page)] == [1.0, 1.0, None, 0.5, None, 0.4]
    (marks,) = [trace for trace in plotted(page)["loss"] if (trace["meta"] or {}).get("kind") == "gap"]
    assert (marks["x"], marks["y"], marks["text"]) == ([2, 4], [1.0, 0.5], ["NaN", "Infinity"])


def test_a_run_that_waits_says_so_and_then_comes_alive(visit: Visitor, db: Database) -> None:
    run_id = new_run(db).id
    page = visit.open(f"/runs/{run_id}")
    expect(page.locator("#hint")).to_contain_text("Waiting for the training process")
    expect(page.locator("#workers")).to_contain_text("No worker has reported yet")
    start_run(db, run_id, START)
    RunWriter(db, run_id).write(some_steps(0, 4))
    wait_for_cursor(page, 4)
    expect(page.locator("#hint")).to_be_hidden()
    expect(page.locator("#workers tbody tr")).to_have_count(2)
    expect(page.locator("#run-header [data-chips]")).to_contain_text("2 workers, 1 : 2.5")


def test_a_run_that_nobody_has_heard_of_is_lost(visit: Visitor, db: Database) -> None:
    past = datetime.now(UTC) - timedelta(seconds=31)
    with open_database(clock=lambda: past) as then:
        run_id = running(then)
    page = visit.open(f"/runs/{run_id}")
    expect(page.locator("#status")).to_have_text("Lost")
    expect(page.locator("#hint")).to_contain_text("has not been heard of")
    expect(page.locator("#stop")).to_be_hidden()


def test_a_run_that_failed_says_why(visit: Visitor, db: Database) -> None:
    run_id = running(db)
    end_run(db, run_id, "failed", "WorkerError: rank 1 <b>raised</b>")
    page = visit.open(f"/runs/{run_id}")
    expect(page.locator("#failure")).to_contain_text("WorkerError: rank 1 <b>raised</b>")


def test_stop_asks_twice_and_then_asks_for_the_end(visit: Visitor, db: Database) -> None:
    run_id = running(db)
    page = visit.open(f"/runs/{run_id}")
    stop = page.locator("#stop")
    stop.click()
    expect(stop).to_have_text("Stop for good?")
    assert not cancel_requested(db, run_id)
    with page.expect_response(lambda response: response.url.endswith("/cancel")) as answer:
        stop.click()
    assert answer.value.status == 202
    expect(stop).to_have_text("Stopping")
    expect(stop).to_be_disabled()
    assert cancel_requested(db, run_id)


def test_the_page_goes_by_keys(visit: Visitor, db: Database) -> None:
    run_id = running(db)
    writer = RunWriter(db, run_id)
    writer.write(some_steps(0, 4))
    page = visit.open(f"/runs/{run_id}")
    wait_for_cursor(page, 4)
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.keyboard.press("x")
    expect(page.locator("[data-x=epoch]")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("l")
    expect(page.locator("#log")).to_have_attribute("aria-pressed", "false")
    page.keyboard.press(" ")
    expect(page.locator("#age")).to_contain_text("held")
    writer.write(some_steps(4, 6))
    page.keyboard.press(" ")
    wait_for_cursor(page, 6)


def test_a_table_lies_behind_every_chart(visit: Visitor, db: Database) -> None:
    run_id = running(db)
    writer = RunWriter(db, run_id)
    writer.write([*some_steps(0, 4), SYNC, epoch(0)])
    page = visit.open(f"/runs/{run_id}")
    wait_for_cursor(page, writer.last_seq)
    for name, rows in {"loss": 4, "sync": 1, "throughput": 4, "share": 1, "eval": 1}.items():
        page.locator(f"#{name}-table summary").click()
        expect(page.locator(f"#{name}-table tbody tr")).to_have_count(rows)


def test_one_worker_has_nothing_to_average_and_says_so(visit: Visitor, db: Database) -> None:
    run_id = running(db)
    page = visit.open(f"/runs/{run_id}")
    expect(page.locator("#loss-legend")).to_contain_text("no average yet")
    with db.write() as connection:
        connection.exec_driver_sql(f"UPDATE run SET world_size = 1 WHERE id = '{run_id}'")
    expect(page.locator("#loss-legend")).to_contain_text("nothing to average")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1440])
def test_the_page_fits_its_window_in_both_themes(visit: Visitor, db: Database, width: int, dark: bool) -> None:
    run_id = running(db, name="a name that is much too long for a narrow header", tags=("tag",) * 8)
    writer = RunWriter(db, run_id)
    writer.write([*some_steps(0, 40), SYNC, epoch(0)], progress=PROGRESS)
    for path in (f"/runs/{run_id}", "/", "/api/docs"):
        page = visit.open(path, width=width, dark=dark)
        page.wait_for_load_state("load")
        if "runs" in path:
            wait_for_cursor(page, writer.last_seq)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == (
            "rgb(14, 17, 22)" if dark else "rgb(246, 247, 249)"
        )
