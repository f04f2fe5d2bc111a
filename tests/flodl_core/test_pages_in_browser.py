"""Both pages in a real Chromium, opened from disk: nobody is asked, nothing complains, nothing sticks out."""

from __future__ import annotations

from pathlib import Path

import pytest

from flodl_core import Monitor, Timeline
from tests.dashboard.browser import visitor
from tests.flodl_core.monitor.test_monitor import metrics
from tests.flodl_core.timeline.test_page import a_run

WIDE, NARROW = 1180, 360
STICKING_OUT = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
COVERED = """() => [...document.querySelectorAll(".row")].filter((row) => {
    const [name, plot] = row.children;
    const [a, b] = [name.getBoundingClientRect(), plot.getBoundingClientRect()];
    return plot.clientWidth < 100 || (a.right > b.left && a.bottom > b.top);
}).length"""
INK = "() => getComputedStyle(document.body).color"


def save_pages(folder: Path) -> list[str]:
    """A run of two ranks with one lost, one of sixteen, and none at all."""
    a_run().save_html(folder / "timeline.html")
    Timeline().save_html(folder / "no-timeline.html")
    for name, devices in (("two", ["cpu", "cpu@2.5"]), ("sixteen", [f"cuda:{rank}" for rank in range(16)])):
        monitor = Monitor(3)
        for epoch in range(2):
            monitor.log(metrics(epoch, loss=0.5 - 0.1 * epoch, devices=devices, eval_={"a" * 40 + " accuracy": 0.9}))
        monitor.save_html(folder / f"{name}.html")
    Monitor().save_html(folder / "no-monitor.html")
    return sorted(path.name for path in folder.glob("*.html"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_fit_and_complain_of_nothing(dark: bool, tmp_path: Path) -> None:
    names = save_pages(tmp_path)
    assert len(names) == 5
    inks = set()
    with visitor(f"{tmp_path.as_uri()}/") as visit:
        for name in names:
            for width in (WIDE, NARROW):
                page = visit.open(name, width=width, dark=dark)
                assert page.title()
                assert (name, width, page.evaluate(STICKING_OUT), page.evaluate(COVERED)) == (name, width, 0, 0)
                inks.add(page.evaluate(INK))
                page.context.close()
    assert inks == {"rgb(232, 234, 238)" if dark else "rgb(22, 24, 29)"}
