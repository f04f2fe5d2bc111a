"""Plots as inline SVG that stretches to its place: shapes only, so that no text is stretched with them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH = 1000
"""Units across; stretched to the width of the page."""
PAD = 1.5
"""Units at top and bottom that keep a line's whole width within the plot."""

Points = Sequence[tuple[float, float | None]]
"""(x, y): where y is None or not finite the curve is interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """From values to units of a plot.

    Attributes:
        left: The x at the left edge.
        right: The x at the right edge.
        low: The y at the bottom.
        high: The y at the top.
        height: Units, and pixels, from bottom to top.
    """

    left: float
    right: float
    low: float = 0.0
    high: float = 1.0
    height: int = 40

    def x(self, value: float) -> float:
        """Units from the left, within the plot."""
        span = self.right - self.left
        return WIDTH * min(1.0, max(0.0, (value - self.left) / span)) if span > 0 else 0.0

    def y(self, value: float) -> float:
        """Units from the top, within the plot."""
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.5
        return PAD + (self.height - 2 * PAD) * (1 - min(1.0, max(0.0, share)))


def plot(scale: Scale, shapes: Iterable[str]) -> str:
    """An ``svg`` element of the given shapes."""
    return (
        f'<svg class="plot" style="height:{scale.height}px" viewBox="0 0 {WIDTH} {scale.height}" '
        f'preserveAspectRatio="none" aria-hidden="true">{"".join(shapes)}</svg>'
    )


def curve(scale: Scale, points: Points, color: str) -> str:
    """A line through points; a point alone is a dot."""
    path = "".join(_stroke(scale, part) for part in _unbroken(points))
    return f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.6" stroke-linecap="round"/>' if path else ""


def _unbroken(points: Points) -> list[list[tuple[float, float]]]:
    parts: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is not None and math.isfinite(y):
            parts[-1].append((x, y))
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]


def _stroke(scale: Scale, points: list[tuple[float, float]]) -> str:
    places = [f"{scale.x(x):.1f} {scale.y(y):.1f}" for x, y in points]
    return f"M{places[0]}h.1" if len(places) == 1 else f"M{'L'.join(places)}"


def box(left: float, top: float, width: float, height: float) -> str:
    """A rectangle as a piece of a path, in units."""
    return f"M{left:.2f} {top:.2f}h{width:.2f}v{height:.2f}h{-width:.2f}z"


def hint(shape: str, text: str) -> str:
    """An invisible shape that tells something when pointed at; ``text`` must be safe to stand in HTML."""
    return f'<path d="{shape}" fill="transparent"><title>{text}</title></path>'


def filled(path: str, color: str) -> str:
    """A filled path, or nothing where it is empty."""
    return f'<path d="{path}" fill="{color}"/>' if path else ""


def ticks(scale: Scale, values: Iterable[float], color: str) -> str:
    """A line from top to bottom at each x; those that fall on each other are drawn once."""
    places = sorted({round(scale.x(value)) for value in values})
    path = "".join(f"M{place} 0v{scale.height}" for place in places)
    return f'<path d="{path}" stroke="{color}" stroke-width="1.2"/>' if path else ""


def levels(scale: Scale, values: Iterable[float]) -> str:
    """A faint line from left to right at each y."""
    path = "".join(f"M0 {scale.y(value):.1f}h{WIDTH}" for value in values)
    return f'<path d="{path}" stroke="var(--line)" stroke-width="1"/>' if path else ""


def labelled(scale: Scale, svg: str, labels: Iterable[tuple[float, str]]) -> str:
    """A plot with texts at their y, as HTML; they must be safe to stand in it."""
    spans = (f'<span style="top:{100 * scale.y(value) / scale.height:.1f}%">{text}</span>' for value, text in labels)
    return f'<div class="levels">{svg}{"".join(spans)}</div>'


LEAST_SPAN = 1e-300
"""Below this, steps would be among the last numbers there are, which have few digits left."""


def round_steps(low: float, high: float, most: int) -> list[float]:
    """Round values from ``low`` to ``high``: multiples of 1, 2 or 5 times a power of ten, at most ``most`` + 1."""
    span = high - low
    if not (math.isfinite(span) and span > LEAST_SPAN):
        return [low]
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def axis(scale: Scale, labels: Iterable[tuple[float, str]]) -> str:
    """Labels below a plot at their x, as HTML; they must be safe to stand in it."""
    return f'<div class="axis">{"".join(_label(100 * scale.x(value) / WIDTH, text) for value, text in labels)}</div>'


def _label(percent: float, text: str) -> str:
    shift = 0 if percent < 4 else -100 if percent > 96 else -50  # within the plot at its edges, else centred
    return f'<span style="left:{percent:.2f}%;transform:translateX({shift}%)">{text}</span>'
