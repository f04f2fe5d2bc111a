"""Schedules against their formulas, worked out apart: exact fractions, and numpy's extended precision for cosines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core import (
    ConfigError,
    CosineScheduler,
    CyclicLR,
    ExponentialLR,
    MultiStepLR,
    OneCycleLR,
    StepDecay,
    WarmupScheduler,
)

POSITIONS = st.integers(0, 10_000)
LENGTHS = st.integers(1, 5_000)
FACTORS = st.floats(1e-6, 10.0)
GAMMAS = st.floats(0.95, 1.02)
PI = np.longdouble("3.14159265358979323846264338327950288")


def agrees(value: float, expected: Fraction | np.longdouble) -> bool:
    """Whether they are equal to 1e-12 relative."""
    if isinstance(expected, Fraction):
        return abs(Fraction(value) - expected) <= abs(expected) * Fraction(1, 10**12)
    return bool(abs(np.longdouble(value) - expected) <= abs(expected) * np.longdouble("1e-12"))


def half_cosine(high: float, low: float, done: int, total: int) -> np.longdouble:
    """low + (high - low) x (1 + cos(pi x done / total)) / 2; near the end of the fall 1 + cos as its Taylor series."""
    left = PI * np.longdouble(total - done) / np.longdouble(total)
    if left > 0.1:
        share = (1 - np.cos(left)) / 2  # cos(pi - x) = -cos(x)
    else:
        share = left**2 / 4 - left**4 / 48 + left**6 / 1440 - left**8 / 80640
    value: np.longdouble = np.longdouble(low) + (np.longdouble(high) - np.longdouble(low)) * share
    return value


# The formulas


@given(position=POSITIONS, step_size=LENGTHS, gamma=GAMMAS, base=FACTORS)
def test_step_decay_multiplies_once_a_step(position: int, step_size: int, gamma: float, base: float) -> None:
    drops = position // step_size
    value = StepDecay(step_size=step_size, gamma=gamma, base=base)(position)
    assert agrees(value, np.longdouble(base) * np.longdouble(gamma) ** np.longdouble(drops))


@given(position=POSITIONS, gamma=GAMMAS, base=FACTORS)
def test_exponential_multiplies_once_a_batch(position: int, gamma: float, base: float) -> None:
    value = ExponentialLR(gamma=gamma, base=base)(position)
    assert agrees(value, np.longdouble(base) * np.longdouble(gamma) ** np.longdouble(position))


@given(position=POSITIONS, milestones=st.lists(POSITIONS, max_size=8), gamma=st.floats(0.1, 2.0), base=FACTORS)
def test_multi_step_multiplies_at_each_milestone(
    position: int, milestones: list[int], gamma: float, base: float
) -> None:
    drops = sum(position >= milestone for milestone in milestones)
    value = MultiStepLR(milestones=milestones, gamma=gamma, base=base)(position)
    assert agrees(value, Fraction(base) * Fraction(gamma) ** drops)


@given(position=POSITIONS, total=LENGTHS, base=FACTORS, share=st.floats(0.0, 1.0))
def test_cosine_falls_to_its_minimum_and_stays(position: int, total: int, base: float, share: float) -> None:
    minimum = base * share
    value = CosineScheduler(total=total, minimum=minimum, base=base)(position)
    assert agrees(value, half_cosine(base, minimum, min(position, total), total))


@given(position=POSITIONS, total=LENGTHS)
def test_cosine_to_nothing_keeps_its_digits_to_the_end(position: int, total: int) -> None:
    assert agrees(CosineScheduler(total=total)(position), half_cosine(1.0, 0.0, min(position, total), total))


@given(position=POSITIONS, num_warmup=st.integers(0, 5_000), target=FACTORS, total=LENGTHS)
def test_warmup_rises_to_its_target_and_hands_over(position: int, num_warmup: int, target: float, total: int) -> None:
    inner = CosineScheduler(total=total)
    value = WarmupScheduler(inner, num_warmup=num_warmup, target=target)(position)
    if position < num_warmup:
        assert agrees(value, Fraction(target) * (position + 1) / num_warmup)
    else:
        assert value == inner(position - num_warmup)


@given(position=POSITIONS, total=LENGTHS, warmup_frac=st.floats(0.0, 1.0), maximum=FACTORS)
def test_one_cycle_rises_in_a_line_and_falls_as_a_cosine(
    position: int, total: int, warmup_frac: float, maximum: float
) -> None:
    value = OneCycleLR(total=total, warmup_frac=warmup_frac, maximum=maximum)(position)
    rise = math.floor(Fraction(warmup_frac * total) + Fraction(1, 2))
    low = Fraction(maximum) / 25
    step = min(position, total)
    if step < rise:
        assert agrees(value, low + (Fraction(maximum) - low) * step / rise)
    else:
        expected = half_cosine(1.0, 0.0, step - rise, max(total - rise, 1))
        assert agrees(value, np.longdouble(maximum) / 25 * (1 + 24 * expected))


@given(
    position=POSITIONS,
    up=LENGTHS,
    down=st.none() | LENGTHS,
    maximum=FACTORS,
    share=st.floats(0.0, 1.0),
    zero=st.booleans(),
)
def test_cyclic_is_a_triangle(
    position: int, up: int, down: int | None, maximum: float, share: float, zero: bool
) -> None:
    base = 0.0 if zero else maximum * share
    value = CyclicLR(base=base, step_size_up=up, step_size_down=down, maximum=maximum)(position)
    fall = up if down is None else down
    step = position % (up + fall)
    height = Fraction(step, up) if step <= up else 1 - Fraction(step - up, fall)
    assert agrees(value, Fraction(base) + (Fraction(maximum) - Fraction(base)) * height)


# What they are for


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (StepDecay(step_size=2, gamma=0.5), [1, 1, 0.5, 0.5, 0.25, 0.25]),
        (MultiStepLR(milestones=[4, 1, 4], gamma=0.5), [1, 0.5, 0.5, 0.5, 0.125, 0.125]),
        (ExponentialLR(gamma=0.5), [1, 0.5, 0.25, 0.125, 0.0625]),
        (CosineScheduler(total=2, minimum=0.5), [1, 0.75, 0.5, 0.5, 0.5]),
        (WarmupScheduler(StepDecay(step_size=2, gamma=0.5), num_warmup=4), [0.25, 0.5, 0.75, 1, 1, 1, 0.5, 0.5]),
        (WarmupScheduler(lambda position: float(position), num_warmup=0), [0, 1, 2]),
        (OneCycleLR(total=4, warmup_frac=0.5, maximum=25), [1, 13, 25, 13, 1, 1, 1]),
        (OneCycleLR(total=5, maximum=25), [1, 13, 25, 19, 7, 1]),  # 0.3 x 5 = 1.5 is rounded to 2
        (OneCycleLR(total=2, warmup_frac=0, maximum=25), [25, 13, 1, 1]),
        (OneCycleLR(total=2, warmup_frac=1, maximum=25), [1, 13, 25, 25]),
        (CyclicLR(base=0, step_size_up=2), [0, 0.5, 1, 0.5, 0, 0.5, 1]),
        (CyclicLR(base=0, step_size_up=1, step_size_down=4), [0, 1, 0.75, 0.5, 0.25, 0, 1]),
    ],
)
def test_first_values(schedule: Callable[[int], float], expected: list[float]) -> None:
    assert [schedule(position) for position in range(len(expected))] == pytest.approx(expected, rel=1e-14)


@given(total=LENGTHS, base=FACTORS, share=st.floats(0.0, 1.0), position=POSITIONS)
def test_cosine_never_rises_and_keeps_within_its_bounds(total: int, base: float, share: float, position: int) -> None:
    schedule = CosineScheduler(total=total, minimum=base * share, base=base)
    here, then = schedule(position), schedule(position + 1)
    slack = 1e-12 * base
    assert base * share - slack <= then <= here + slack
    assert here <= base + slack
    assert schedule(0) == pytest.approx(base)
    assert schedule(total) == schedule(total + position) == base * share


@given(total=st.integers(1, 300), warmup_frac=st.floats(0.0, 1.0), position=POSITIONS)
def test_one_cycle_has_one_peak(total: int, warmup_frac: float, position: int) -> None:
    schedule = OneCycleLR(total=total, warmup_frac=warmup_frac)
    values = [schedule(step) for step in range(total + 2)]
    peak = values.index(max(values))
    assert values[peak] == pytest.approx(1.0)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(values[: peak + 1]))
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(values[peak:]))
    assert all(0.04 - 1e-12 <= value <= 1.0 + 1e-12 for value in values)
    assert schedule(total + position) == schedule(total)


@given(up=st.integers(1, 50), down=st.integers(1, 50), base=st.floats(0.0, 1.0), position=POSITIONS)
def test_cyclic_comes_back_each_cycle(up: int, down: int, base: float, position: int) -> None:
    schedule = CyclicLR(base=base, step_size_up=up, step_size_down=down)
    assert schedule(position) == schedule(position + up + down)
    assert schedule(0) == base
    assert schedule(up) == pytest.approx(1.0)
    assert base - 1e-12 <= schedule(position) <= 1.0 + 1e-12


@given(num_warmup=st.integers(1, 500), target=FACTORS)
def test_warmup_starts_above_nothing_and_ends_on_its_target(num_warmup: int, target: float) -> None:
    schedule = WarmupScheduler(lambda _: 0.0, num_warmup=num_warmup, target=target)
    rise = [schedule(position) for position in range(num_warmup)]
    assert 0 < rise[0] == pytest.approx(target / num_warmup)
    assert rise == sorted(rise)
    assert rise[-1] == target


# What is refused


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: StepDecay(step_size=0), "step_size"),
        (lambda: StepDecay(step_size=1.5), "step_size"),  # type: ignore[arg-type]  # what is tested
        (lambda: StepDecay(step_size=True), "step_size"),
        (lambda: StepDecay(step_size=1, gamma=-0.1), "gamma"),
        (lambda: StepDecay(step_size=1, base=math.inf), "base"),
        (lambda: ExponentialLR(gamma=math.nan), "gamma"),
        (lambda: ExponentialLR(gamma=0.5, base=-1.0), "base"),
        (lambda: MultiStepLR(milestones=[3, -1]), "milestone"),
        (lambda: MultiStepLR(milestones=[3], gamma="0.1"), "gamma"),  # type: ignore[arg-type]  # what is tested
        (lambda: CosineScheduler(total=0), "total"),
        (lambda: CosineScheduler(total=5, minimum=2.0), "minimum"),
        (lambda: WarmupScheduler(1.0, num_warmup=5), "inner"),  # type: ignore[arg-type]  # what is tested
        (lambda: WarmupScheduler(float, num_warmup=-1), "num_warmup"),
        (lambda: OneCycleLR(total=0), "total"),
        (lambda: OneCycleLR(total=5, warmup_frac=1.1), "warmup_frac"),
        (lambda: CyclicLR(base=0.1, step_size_up=0), "step_size_up"),
        (lambda: CyclicLR(base=0.1, step_size_up=1, step_size_down=0), "step_size_down"),
        (lambda: CyclicLR(base=2.0, step_size_up=1), "base"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make: Callable[[], object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()


@pytest.mark.parametrize(
    "schedule",
    [
        StepDecay(step_size=1),
        ExponentialLR(gamma=0.5),
        MultiStepLR(milestones=[1]),
        CosineScheduler(total=1),
        WarmupScheduler(float, num_warmup=1),
        OneCycleLR(total=1),
        CyclicLR(base=0.5, step_size_up=1),
    ],
)
def test_a_negative_position_is_refused(schedule: Callable[[int], float]) -> None:
    with pytest.raises(ValueError, match="at least 0, not -1"):
        schedule(-1)


def test_growth_beyond_all_numbers_says_so() -> None:
    with pytest.raises(OverflowError, match="gamma 2 to the power 5000"):
        ExponentialLR(gamma=2.0)(5000)


def test_a_list_of_milestones_may_change_afterwards() -> None:
    milestones = [2]
    schedule = MultiStepLR(milestones=milestones, gamma=0.5)
    milestones.append(0)
    assert schedule(0) == 1.0
    assert hash(schedule) == hash(MultiStepLR(milestones=(2,), gamma=0.5))
