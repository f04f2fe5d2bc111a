"""How figures are written."""

from __future__ import annotations

import math

import pytest

from flodl_cli import figures


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (949.6, "950"), (999.9, "1.0k"), (12345, "12.3k"), (999_990, "1.0M"), (4.5e6, "4.5M"), (-5, "-5")],
)
def test_counts_are_short(number: float, text: str) -> None:
    assert figures.short_count(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (4.24, "4.2 s"), (59.97, "1:00"), (185, "3:05"), (3723, "1:02:03"), (3599.6, "1:00:00")],
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert figures.duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.123456, "0.1235"), (math.nan, "nan"), (2, "2")])
def test_a_loss_has_four_digits(value: float | None, text: str) -> None:
    assert figures.loss(value) == text
