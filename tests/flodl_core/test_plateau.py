from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core import ConfigError, PlateauScheduler


def observed(plateau: PlateauScheduler, *metrics: float) -> list[float]:
    return [plateau.observe(metric) for metric in metrics]


def test_drops_at_the_value_that_makes_patience_full() -> None:
    plateau = PlateauScheduler(patience=2, factor=0.5)
    assert observed(plateau, 1.0, 0.9, 0.9, 1.1, 0.95, 0.95) == [1, 1, 1, 0.5, 0.5, 0.25]


def test_a_new_minimum_however_small_starts_the_count_again() -> None:
    plateau = PlateauScheduler(patience=2, factor=0.5)
    assert observed(plateau, 1.0, 1.0, math.nextafter(1.0, 0.0), 1.0, 1.0) == [1, 1, 1, 1, 0.5]


def test_the_minimum_before_a_drop_is_still_the_one_to_beat() -> None:
    plateau = PlateauScheduler(patience=1, factor=0.5)
    assert observed(plateau, 1.0, 2.0, 1.5) == [1, 0.5, 0.25]


def test_patience_of_none_is_as_one() -> None:
    metrics = (3.0, 3.0, 2.0, 4.0, 1.0)
    assert observed(PlateauScheduler(patience=0), *metrics) == observed(PlateauScheduler(patience=1), *metrics)


def test_nan_and_infinity_are_no_improvement() -> None:
    plateau = PlateauScheduler(patience=2, factor=0.5)
    assert observed(plateau, math.nan, math.inf, 5.0, math.nan, math.nan) == [1, 0.5, 0.5, 0.5, 0.25]


def test_reading_observes_nothing() -> None:
    plateau = PlateauScheduler(patience=2, factor=0.5, base=4.0)
    observed(plateau, 1.0, 1.0)
    assert [plateau.lr for _ in range(5)] == [4.0] * 5
    assert plateau.observe(1.0) == plateau.lr == 2.0


def test_an_epoch_keeps_the_factor_that_its_first_worker_saw() -> None:
    plateau = PlateauScheduler(patience=1, factor=0.5)
    plateau.observe(1.0)
    assert plateau.at_epoch(1) == 1.0
    plateau.observe(1.0)
    assert plateau.at_epoch(1) == 1.0
    assert plateau.at_epoch(2) == 0.5
    plateau.observe(1.0)
    assert [plateau.at_epoch(epoch) for epoch in (1, 2, 3)] == [1.0, 0.5, 0.25]


@given(
    metrics=st.lists(st.floats(), max_size=60),
    patience=st.integers(0, 5),
    factor=st.floats(0.1, 0.9),
    minimum=st.floats(0.0, 1.0),
)
def test_follows_its_definition(metrics: list[float], patience: int, factor: float, minimum: float) -> None:
    plateau = PlateauScheduler(patience=patience, factor=factor, minimum=minimum)
    lr, since = 1.0, 0
    for count, metric in enumerate(metrics, start=1):
        is_new_minimum = all(metric < earlier for earlier in metrics[: count - 1] if not math.isnan(earlier))
        since = 0 if is_new_minimum and metric < math.inf else since + 1
        if since and since >= patience:
            lr, since = max(lr * factor, minimum), 0
        before = plateau.lr
        assert plateau.observe(metric) == plateau.lr == lr
        assert minimum <= lr <= before


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"patience": -1}, "patience"),
        ({"factor": 0.0}, "factor"),
        ({"factor": 1.0}, "factor"),
        ({"factor": math.nan}, "factor"),
        ({"minimum": 2.0}, "minimum"),
        ({"minimum": -0.1}, "minimum"),
        ({"base": math.inf}, "base"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        PlateauScheduler(**arguments)  # type: ignore[arg-type]  # what is tested
