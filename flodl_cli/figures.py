"""How figures are written for people."""

import math


def rate(samples_per_s: float) -> str:
    """Samples per second in a few characters: ``950/s``, ``12.3k/s``."""
    return f"{short_count(samples_per_s)}/s"


def short_count(number: float) -> str:
    """A count in a few characters: ``950``, ``12.3k``, ``4.5M``."""
    if not math.isfinite(number) or abs(number) < 999.5:
        return f"{number:.0f}"
    return f"{number / 1e3:.1f}k" if abs(number) < 999_950 else f"{number / 1e6:.1f}M"


def duration(seconds: float) -> str:
    """A time as ``4.2 s``, ``3:05`` or ``1:02:03``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def loss(value: float | None) -> str:
    """A loss with four significant digits, or a dash where there is none."""
    return "-" if value is None else f"{value:.4g}"


def percent(share: float) -> str:
    """A share from 0 to 1 as a percentage."""
    return f"{share:.1%}"
