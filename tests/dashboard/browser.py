"""A real Chromium that looks at the dashboard, and notes whatever a page should not do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
LIMIT_MS = 20_000.0
PLOTTED = """() => Object.fromEntries(["loss", "throughput", "share", "eval"].map((chart) => [
    chart,
    (document.getElementById(`${chart}-chart`).data ?? [])
        .map(({ name, x, y, meta, text, visible }) => ({ name, x, y, meta, text, visible })),
]))"""


@dataclass(kw_only=True)
class Visitor:
    """Opens pages, and keeps what went wrong in any of them."""

    browser: Browser
    url: str
    faults: list[str] = field(default_factory=list)
    expect_reconnects: bool = False

    def open(self, path: str, *, width: int = 1440, height: int = 900, dark: bool = False) -> Page:
        context = self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        context.set_default_timeout(LIMIT_MS)
        page = context.new_page()
        page.on("console", lambda message: self._console(message.type, message.text))
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("request", lambda request: self._request(request.url))
        page.goto(self.url + path)
        return page

    def _console(self, kind: str, text: str) -> None:
        if kind not in ("error", "warning"):
            return
        # What a browser says of a server that is not there, when a test has stopped it.
        if self.expect_reconnects and ("ERR_CONNECTION_REFUSED" in text or "ERR_INCOMPLETE_CHUNKED" in text):
            return
        self.faults.append(f"console {kind}: {text}")

    def _request(self, url: str) -> None:
        if urlsplit(url).scheme in ("http", "https", "ws", "wss") and not url.startswith(self.url):
            self.faults.append(f"request off the host: {url}")


@contextmanager
def visitor(url: str) -> Iterator[Visitor]:
    """A browser for a test; the test fails where a page complained or asked somebody else."""
    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("there is no Chromium on PATH, and continuous integration must have one")
        pytest.skip("needs Chromium on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            visit = Visitor(browser=browser, url=url)
            yield visit
        finally:
            browser.close()
    assert visit.faults == []


def wait_for_cursor(page: Page, seq: int) -> None:
    """Until the page shows every row up to ``seq``."""
    page.wait_for_function("seq => Number(document.body.dataset.cursor) === seq", arg=seq)


def plotted(page: Page) -> dict[str, Any]:
    """What the charts hold, by chart."""
    charts: dict[str, Any] = page.evaluate(PLOTTED)
    return charts


def loss_points(page: Page) -> list[tuple[int, float, float | None]]:
    """Rank, x and y of every point of the loss by rank, as it is drawn; ask for raw lines first."""
    traces = [trace for trace in plotted(page)["loss"] if (trace["meta"] or {}).get("kind") == "loss"]
    return [(trace["meta"]["rank"], x, y) for trace in traces for x, y in zip(trace["x"], trace["y"], strict=True)]


def show_raw(page: Page) -> None:
    """Turn smoothing off: its button goes round three kinds."""
    for _ in range(3):
        if page.locator("#smooth").inner_text() == "raw":
            return
        before = page.locator("#smooth").inner_text()
        page.keyboard.press("s")
        page.wait_for_function("text => document.getElementById('smooth').textContent !== text", arg=before)
    raise AssertionError("smoothing cannot be turned off")
