"""Plots stay within their frame, whatever the values are."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flodl_core.svg_plot import WIDTH, Scale, axis, curve, labelled, round_steps, ticks

ANY = st.floats(allow_nan=True, allow_infinity=True)
FINITE = st.floats(-1e12, 1e12)


@given(FINITE, FINITE, FINITE, FINITE, st.lists(st.tuples(FINITE, st.one_of(st.none(), ANY)), max_size=20))
def test_a_curve_stays_within_its_plot(
    left: float, right: float, low: float, high: float, points: list[tuple[float, float | None]]
) -> None:
    scale = Scale(left=left, right=right, low=low, high=high, height=40)
    drawn = curve(scale, points, "red")
    path = re.search(r' d="([^"]*)"', drawn)
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path[1].replace("h.1", ""))] if path else []
    assert all(0 <= x <= WIDTH for x in numbers[::2])
    assert all(0 <= y <= 40 for y in numbers[1::2])
    assert bool(drawn) == any(y is not None and math.isfinite(y) for _, y in points)


def test_a_curve_is_interrupted_where_a_value_is_missing() -> None:
    scale = Scale(left=0.0, right=4.0, high=4.0)
    drawn = curve(scale, [(0, 1.0), (1, 2.0), (2, None), (3, 3.0), (4, math.nan)], "red")
    assert drawn.count("M") == 2
    assert drawn.count("h.1") == 1  # the third is alone: a dot


@example(0.0, 5e-324, 1)
@example(0.0, 5e-324, 2)
@given(FINITE, st.floats(0, 1e12), st.integers(1, 10))
def test_steps_are_round_and_few(low: float, span: float, most: int) -> None:
    steps = round_steps(low, low + span, most)
    assert len(steps) <= most + 1
    assert all(low - 1e-6 * span <= step <= low + span * (1 + 1e-6) for step in steps)


@pytest.mark.parametrize(
    ("low", "high", "steps"), [(0, 10, [0, 2, 4, 6, 8, 10]), (0.1, 0.9, [0.2, 0.4, 0.6, 0.8]), (3, 3, [3])]
)
def test_steps(low: float, high: float, steps: list[float]) -> None:
    assert round_steps(low, high, 5) == pytest.approx(steps)


def test_ticks_that_fall_on_each_other_are_drawn_once() -> None:
    scale = Scale(left=0.0, right=1000.0)
    assert ticks(scale, [10.0, 10.2, 500.0], "red").count("M") == 2
    assert ticks(scale, [], "red") == ""


def test_labels_stand_at_their_values() -> None:
    scale = Scale(left=0.0, right=10.0, low=0.0, high=1.0, height=100)
    assert 'left:50.00%;transform:translateX(-50%)">5</span>' in axis(scale, [(5.0, "5")])
    assert 'top:50.0%">0.5</span>' in labelled(scale, "<svg></svg>", [(0.5, "0.5")])
