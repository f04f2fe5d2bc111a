"""The machine's curves on a timeline's page."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flodl_core.display_text import bytes_text
from flodl_core.html_page import row
from flodl_core.svg_plot import Points, Scale, curve, levels, plot
from flodl_core.thinned_series import ThinnedSeries
from flodl_core.timeline.samples import DeviceSample, TimelineSample, merge_samples

MAX_DRAWN = 800
HEIGHT = 40
COLOR = "var(--c0)"

Read = Callable[[TimelineSample], float | None]
Tell = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """One curve.

    Attributes:
        full: What fills the plot; None lets the largest value fill it.
        is_part: Whether to say of how much a value is part.
        is_bridged: Whether the line goes on where a value is not known.
    """

    name: str
    read: Read
    tell: Tell
    full: float | None = None
    is_part: bool = False
    is_bridged: bool = False


def draw_curves(samples: Sequence[TimelineSample], scale: Scale) -> list[str]:
    """A row for each figure that was ever known.

    Args:
        samples: In order, at least one.
        scale: Where time is across the page.
    """
    drawn: ThinnedSeries[TimelineSample] = ThinnedSeries(
        MAX_DRAWN, time_s=lambda sample: sample.time_s, merge=merge_samples
    )
    for sample in samples:
        drawn.add(sample)
    return [row_ for one in _curves(samples[-1]) if (row_ := _draw(one, list(drawn), scale))]


def _draw(one: _Curve, samples: list[TimelineSample], scale: Scale) -> str:
    points: Points = [(sample.time_s, one.read(sample)) for sample in samples]
    known = [value for _, value in points if value is not None]
    if not known:
        return ""
    if one.is_bridged:
        points = [(x, value) for x, value in points if value is not None]
    high = one.full or max(known) or 1.0
    own = Scale(left=scale.left, right=scale.right, high=high, height=HEIGHT)
    detail = f"peak {one.tell(max(known))}" + (f" of {one.tell(one.full)}" if one.full and one.is_part else "")
    return row(one.name, detail, plot(own, [levels(own, [high / 2]), curve(own, points, COLOR)]))


def _curves(last: TimelineSample) -> Iterable[_Curve]:
    # a share of the CPU is missing where two samples were too close to each other to tell
    yield _Curve(
        name="CPU, all cores", read=lambda sample: sample.cpu_percent, tell=_percent, full=100.0, is_bridged=True
    )
    yield _memory("RAM", lambda sample: sample.ram_used_bytes, last.ram_total_bytes)
    yield _Curve(name="RAM of this process", read=lambda sample: sample.process_rss_bytes, tell=bytes_text)
    for index, device in enumerate(last.devices):
        yield from _device_curves(index, device)


def _device_curves(index: int, last: DeviceSample) -> Iterable[_Curve]:
    name, total = last.device, last.memory_total_bytes

    def of_device(read: Callable[[DeviceSample], float | None]) -> Read:
        return lambda sample: read(sample.devices[index])

    yield _Curve(name=f"{name} busy", read=of_device(lambda s: s.utilization_percent), tell=_percent, full=100.0)
    yield _memory(f"{name} memory", of_device(lambda s: s.memory_used_bytes), total)
    yield _memory(f"{name} allocated", of_device(lambda s: s.memory_allocated_bytes), total)
    yield _Curve(name=f"{name} power", read=of_device(lambda s: s.power_w), tell=lambda value: f"{value:.0f} W")
    yield _Curve(
        name=f"{name} temperature", read=of_device(lambda s: s.temperature_c), tell=lambda value: f"{value:.0f} °C"
    )


def _memory(name: str, read: Read, total: float | None) -> _Curve:
    return _Curve(name=name, read=read, tell=bytes_text, full=total, is_part=True)


def _percent(value: float) -> str:
    return f"{value:.0f} %"
