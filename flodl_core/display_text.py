"""Numbers as a person reads them, and values that were refused."""

import math

MOST_SHOWN = 60
"""Characters of a refused value that are shown."""


def duration_text(seconds: float) -> str:
    """``0.4 s``, ``12.3 s``, ``2 m 05 s``, ``1 h 02 m``; NaN and infinity as such."""
    if not math.isfinite(seconds):
        return f"{seconds:g} s"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m"


def bytes_text(num_bytes: float) -> str:
    """``512 B``, ``1.5 GiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while num_bytes >= 1024 and power < len(units) - 1:
        num_bytes /= 1024
        power += 1
    return f"{num_bytes:.0f} B" if power == 0 else f"{num_bytes:.1f} {units[power]}"


def number_text(value: float) -> str:
    """Four significant digits, or more before the point: ``0.1234``, ``1,234``, ``1.2e-05``, ``nan``."""
    if math.isfinite(value) and abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:.4g}"


def percent_text(share: float) -> str:
    """A share as a percentage: ``97.1 %``; a trace is told apart from nothing."""
    percent = 100 * share
    return "< 0.1 %" if 0 < percent < 0.05 else f"{percent:.1f} %"


def value_text(value: object) -> str:
    """A value as an error shows it, in Python's notation: of a long one the beginning."""
    if isinstance(value, int) and value.bit_length() > 4 * MOST_SHOWN:
        return f"one of {value.bit_length():,} bits"  # Python refuses to print the longest
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "..."
