from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.errors import ConfigError
from flodl_core.guard import ConvergenceGuard
from tests.reference_data import reference_cases


def observe_all(threshold: float | None, maxima: list[float]) -> list[bool]:
    guard = ConvergenceGuard(threshold)
    return [guard.observe({0: value}) for value in maxima]


def _guard_of(case: dict[str, Any]) -> ConvergenceGuard:
    if not case["enabled"]:
        return ConvergenceGuard(None)
    # under sync, replicas never differ and no rise counts: as with a threshold that nothing is above
    return ConvergenceGuard(math.inf if case["policy"] == "Sync" else case["threshold"])


def test_guard_replays_the_reference() -> None:
    cases = [c for c in reference_cases("convergence") if c["kind"] == "guard" and not c["nonfinite"]]
    verdicts = set()
    for case in cases:
        guard = _guard_of(case)
        for deltas, _, action, history in case["steps"]:
            stable = guard.observe(dict(enumerate(deltas)))
            assert stable == (action == "Stable"), case
            assert list(guard.history) == history, case
            verdicts.add(stable)
    assert len(cases) > 80
    assert verdicts == {True, False}


def test_three_rising_values_are_unstable_only_when_the_last_is_above_the_threshold() -> None:
    assert observe_all(0.05, [0.01, 0.02, 0.06]) == [True, True, False]
    assert observe_all(0.05, [0.01, 0.02, 0.05]) == [True, True, True]
    assert observe_all(0.05, [0.2, 0.3]) == [True, True]


def test_steady_or_falling_divergence_is_stable_however_high() -> None:
    assert all(observe_all(0.05, [0.9, 0.9, 0.9, 0.8, 0.7]))


def test_only_the_worst_rank_counts() -> None:
    guard = ConvergenceGuard(0.1)
    for worst in (0.1, 0.2):
        assert guard.observe({0: 0.01, 1: worst})
    assert not guard.observe({0: 0.3, 1: 0.01})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_divergence_that_is_not_finite_is_never_stable(value: float) -> None:
    guard = ConvergenceGuard(0.05)
    assert not guard.observe({0: 0.01, 1: value})
    assert guard.observe({0: 0.01, 1: 0.02})


@given(divergences=st.lists(st.lists(st.floats(), max_size=3), max_size=12))
def test_guard_that_is_off_finds_everything_stable_and_remembers_nothing(divergences: list[list[float]]) -> None:
    guard = ConvergenceGuard(None)
    assert all(guard.observe(dict(enumerate(values))) for values in divergences)
    assert guard.history == ()


@pytest.mark.parametrize("threshold", [-0.1, math.nan])
def test_threshold_that_means_nothing_is_refused(threshold: float) -> None:
    with pytest.raises(ConfigError, match="0 or above"):
        ConvergenceGuard(threshold)
