"""The list of runs in a real browser."""

from __future__ import annotations

from playwright.sync_api import expect

from flodl_store.database import Database
from flodl_store.runs import end_run
from flodl_store.writer import RunWriter
from tests.dashboard.browser import Visitor
from tests.flodl_store.rows import epoch, new_run, running


def test_an_empty_list_says_which_command_comes_next(visit: Visitor) -> None:
    page = visit.open("/")
    expect(page.locator("#blank")).to_contain_text("flodl train digits")


def test_a_run_that_starts_appears_by_itself(visit: Visitor, db: Database) -> None:
    page = visit.open("/")
    expect(page.locator("#blank")).to_be_visible()
    run_id = running(db, name="new one")
    expect(page.locator("#rows tr")).to_have_count(1)
    expect(page.locator("#rows .state")).to_have_text("running")
    RunWriter(db, run_id).write([epoch(0), epoch(1, avg_loss=0.2)])
    expect(page.locator("#rows svg")).to_have_count(1)
    end_run(db, run_id, "cancelled")
    expect(page.locator("#rows .state")).to_have_text("cancelled")


def test_the_list_is_searched_filtered_and_walked_by_keys(visit: Visitor, db: Database) -> None:
    runs = [new_run(db, name=name) for name in ("wide net", "deep net", "other")]
    end_run(db, runs[1].id, "failed", "broke")
    page = visit.open("/")
    expect(page.locator("#rows tr")).to_have_count(3)
    page.keyboard.press("/")
    page.keyboard.type("NET")
    expect(page.locator("#rows tr")).to_have_count(2)
    page.locator("#filters [data-status=failed]").click()
    expect(page.locator("#rows tr")).to_have_count(1)
    page.locator("#filters [data-status='']").click()
    expect(page.locator("#rows tr")).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{runs[0].id}")


def test_what_a_run_is_called_stays_text(visit: Visitor, db: Database) -> None:
    name = "<img src=x onerror=alert(1)></script>"
    run_id = running(db, name=name, tags=("<b>tag</b>",))
    expect(visit.open("/").locator("#rows .name")).to_have_text(name)
    page = visit.open(f"/runs/{run_id}")
    expect(page.locator("h1")).to_have_text(name)
    expect(page.locator("#run-header [data-chips]")).to_contain_text("<b>tag</b>")


def test_the_theme_is_chosen_and_kept(visit: Visitor) -> None:
    page = visit.open("/")
    switch = page.locator("[data-theme-switch]")
    expect(switch).to_have_text("Theme: auto")
    switch.click()
    switch.click()
    expect(switch).to_have_text("Theme: dark")
    page.reload()
    expect(page.locator("[data-theme-switch]")).to_have_text("Theme: dark")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 22)"
