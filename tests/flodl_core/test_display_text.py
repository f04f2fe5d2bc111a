"""Numbers as a person reads them."""

from __future__ import annotations

import math

import pytest

from flodl_core.display_text import bytes_text, duration_text, number_text, percent_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (12.34, "12.3 s"), (59.94, "59.9 s"), (59.96, "1 m 00 s"), (125.0, "2 m 05 s"),
     (3599.6, "1 h 00 m"), (93_780.0, "26 h 03 m"), (math.inf, "inf s"), (math.nan, "nan s")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40, "1.0 TiB"), (2**51, "2048.0 TiB")]
)
def test_bytes(num_bytes: float, text: str) -> None:
    assert bytes_text(num_bytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.12345, "0.1235"),
        (1234.5, "1,234"),
        (1.2e-05, "1.2e-05"),
        (1e16, "1e+16"),
        (-2500, "-2,500"),
        (math.nan, "nan"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(("share", "text"), [(0.0, "0.0 %"), (0.0004, "< 0.1 %"), (0.9714, "97.1 %"), (1.0, "100.0 %")])
def test_shares(share: float, text: str) -> None:
    assert percent_text(share) == text
