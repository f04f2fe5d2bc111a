"""The page of a timeline: what stands on it, and that nothing of a run's can break out of its place."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from flodl_core import EpochEnded, RunEnded, RunStarted, Throttled, Timeline, TimelineEvent, WorkerLost
from flodl_core.idle_time import IdleMs
from flodl_core.timeline.curves import MAX_DRAWN
from flodl_core.timeline.page import MAX_DRAWN_SPANS, render
from flodl_core.timeline.record import TimelineRecord
from tests.flodl_core.timeline.factories import FakeMachine, Rig, average, device_sample, sample, window

HOSTILE = "</title></style><script>alert(1)</script>\u202e\x00&amp;'\""
ALLOWED = {
    "html", "head", "meta", "link", "title", "style", "body", "header", "main", "section", "h1", "h2", "p", "div",
    "span", "i", "small", "svg", "path", "table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "img",
}  # fmt: skip


class Reader(HTMLParser):
    """Collects a page's elements, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.tags <= ALLOWED
    assert not {name for name in reader.attributes if name.startswith("on")}
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|url\(|@import""", page)
    return reader


def a_run() -> Timeline:
    """Two ranks, the second lost, on a machine with a GPU."""
    rig = Rig(machine=FakeMachine(devices=(device_sample(power_w=None),)))
    timeline = rig.start(["cuda:0", f"cuda:1 {HOSTILE}"])
    timeline.on_event(RunStarted(time_s=0.0, devices=("cuda:0", "cuda:1"), num_epochs=2, num_samples=6000))
    timeline.on_event(window(0, 0.5, 0.6, busy_ms=100.0))
    timeline.on_event(window(0, 0.6, 0.7, busy_ms=50.0, idle=IdleMs(sync=20.0, wait=30.0)))
    timeline.on_event(window(1, 0.5, 0.8, busy_ms=300.0))
    timeline.on_event(average(0.8))
    timeline.on_event(Throttled(time_s=0.85, rank=0, round=1, num_batches_ahead=4))
    timeline.on_event(WorkerLost(time_s=0.9, rank=1, error=f"rank 1: {HOSTILE}"))
    timeline.on_event(EpochEnded(time_s=0.95, epoch=0, num_samples=6000, global_step=1))
    timeline.mark(HOSTILE, note=HOSTILE, value=float("nan"))
    timeline.on_event(RunEnded(time_s=1.0, status="failed", global_step=2))
    rig.clock.now_s += 1.0
    timeline.stop()
    return timeline


def test_a_page_tells_how_the_run_went() -> None:
    text = read(render(a_run().record())).text
    assert "2 ranks, failed, 1.0 s, 23.7 % training" in text
    assert "Lost at 0.900 s: rank 1:" in text
    assert "epoch 1, 6,000 samples, global step 1" in text
    assert "cuda:0 busy" in text
    assert "cuda:0 power" not in text  # never known
    assert "no data" not in text  # nobody ever was
    assert "wait 30 ms 0.600 s 0.700 s" in " ".join(text.split())


def test_names_from_a_run_stay_text() -> None:
    page = render(a_run().record())
    assert "<script" not in page
    assert HOSTILE.replace("&amp;", "&").split("\x00")[0] in read(page).text.replace("&amp;", "&")


def test_a_timeline_without_a_run_says_so() -> None:
    assert "No run has begun yet." in read(render(Timeline().record())).text


def test_a_run_that_has_only_begun_has_a_page() -> None:
    rig = Rig()
    timeline = rig.start()
    page = render(timeline.record())
    timeline.stop()
    assert "still running" in read(page).text


def test_curves_follow_the_devices() -> None:
    samples = tuple(
        sample(0.1 * number, cpu_percent=None if number == 5 else 50.0, devices=(device_sample(used=None),))
        for number in range(2 * MAX_DRAWN)
    )
    record = TimelineRecord(
        interval_ms=100,
        samples=samples,
        events=(TimelineEvent(kind="mark", time_s=1.0, name="x", fields={}),),
        lanes=a_run().record().lanes,
        num_samples_merged=1,
        num_averages_merged=0,
        num_left_out={"mark": 12},
    )
    page = render(record)
    text = read(page).text
    assert "cuda:0 temperature" in text
    assert "cuda:0 memory" not in text
    assert "1 samples were merged" in text
    assert "12 earlier events of the kind mark are not kept" in text
    assert max(len(path) for path in re.findall(r' d="([^"]+)" fill="none"', page)) < 14 * MAX_DRAWN


def test_a_page_of_many_ranks_and_hours_stays_small() -> None:
    rig = Rig()
    timeline = rig.start([f"cpu{rank}" for rank in range(16)])
    for number in range(16_000):
        timeline.on_event(window(number % 16, 0.2 * number, 0.2 * number + 0.19, busy_ms=150.0))
    timeline.stop()
    page = render(timeline.record())
    assert page.count("<path") < 2 * MAX_DRAWN_SPANS
    assert len(page) < 2_000_000
