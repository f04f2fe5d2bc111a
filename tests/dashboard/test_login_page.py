"""The page that asks for the token, in a real browser: what it sends must count as coming from a page of ours."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from flodl_store.database import Database
from tests.dashboard.browser import visitor, wait_for_cursor
from tests.dashboard.server_process import ServerProcess
from tests.flodl_store.rows import running


def test_a_person_shows_the_token_once_and_is_where_he_wanted_to_be(home: Path, db: Database) -> None:
    run_id = running(db)
    process = ServerProcess(home, "--token", "secret")
    process.start()
    try:
        with visitor(process.url) as visit:
            page = visit.open(f"/runs/{run_id}")
            expect(page.locator("h1")).to_have_text("This dashboard asks for its token")
            page.locator("[name=token]").fill("secret")
            page.keyboard.press("Enter")
            page.wait_for_url(f"**/runs/{run_id}")
            wait_for_cursor(page, 0)  # the stream is let in too
            expect(page.locator("body")).to_have_attribute("data-connection", "open")
    finally:
        process.close()
