from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.rounding import round_half_away


@pytest.mark.parametrize(
    ("x", "rounded"),
    [(0.5, 1), (1.5, 2), (2.5, 3), (-0.5, -1), (-2.5, -3), (0.49999999999999994, 0), (-0.2, 0), (2.0**60, 2**60)],
)
def test_halves_go_away_from_zero(x: float, rounded: int) -> None:
    assert round_half_away(x) == rounded


@given(st.floats(min_value=-1e15, max_value=1e15))
def test_agrees_with_exact_decimal_rounding(x: float) -> None:
    assert round_half_away(x) == int(Decimal(x).to_integral_value(rounding=ROUND_HALF_UP))


def test_not_a_number_has_no_nearest_integer() -> None:
    with pytest.raises(ValueError, match="NaN"):
        round_half_away(float("nan"))
