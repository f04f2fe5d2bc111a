"""Rounding half away from zero: Python's ``round`` goes half to even, which deals two equal ranks unlike counts."""

import math


def round_half_away(x: float) -> int:
    """Round to the nearest integer, halves away from zero.

    Adding 0.5 and taking the floor would be wrong just below a half (0.49999999999999994 + 0.5 is 1.0); the
    difference to the truncated value is exact.

    Raises:
        ValueError: ``x`` is NaN.
        OverflowError: ``x`` is infinite.
    """
    whole = math.trunc(x)
    if abs(x - whole) >= 0.5:
        return whole + (1 if x > 0 else -1)
    return whole
