"""A dashboard that is stopped and started again, while a page is open and a run goes on."""

from __future__ import annotations

from playwright.sync_api import expect

from flodl_store.database import Database
from flodl_store.writer import RunWriter
from tests.dashboard.browser import Visitor, loss_points, show_raw, wait_for_cursor
from tests.dashboard.run_rows import some_steps, stored_points
from tests.dashboard.server_process import ServerProcess
from tests.flodl_store.rows import running


def test_a_restart_of_the_dashboard_costs_no_point_and_repeats_none(
    visit: Visitor, server: ServerProcess, db: Database
) -> None:
    visit.expect_reconnects = True
    run_id = running(db)
    writer = RunWriter(db, run_id)
    writer.write(some_steps(0, 10))
    page = visit.open(f"/runs/{run_id}")
    wait_for_cursor(page, 10)
    show_raw(page)
    for first in (10, 40):
        server.stop()
        expect(page.locator("body")).to_have_attribute("data-connection", "reconnecting")
        expect(page.locator("#age")).to_have_text("reconnecting")
        writer.write(some_steps(first, first + 20))
        server.start()
        writer.write(some_steps(first + 20, first + 30))
        wait_for_cursor(page, first + 30)
    page.wait_for_function("() => document.body.dataset.steps === '70'")
    assert loss_points(page) == stored_points(db, run_id)
