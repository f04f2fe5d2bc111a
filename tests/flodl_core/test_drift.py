from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.drift import Drift, DriftSums, cosine_similarity, relative_distance, square_sum
from tests.reference_data import reference_cases


def drift_of(before: list[list[float]], after: list[float], *, dtype: torch.dtype = torch.float32) -> Drift:
    mean = torch.tensor(after, dtype=torch.promote_types(dtype, torch.float32))
    sums = DriftSums(range(len(before)))
    sums.add([torch.tensor(values, dtype=dtype) for values in before], mean, torch.empty_like(mean))
    return sums.drift()


def test_cosine_and_magnitude_replay_the_reference() -> None:
    cases = [case for case in reference_cases("convergence") if case["kind"] == "norms"]
    num_compared = 0
    for case in cases:
        after_norm = case["post_norm"]
        if case["pre_norms"] is None or after_norm is None:
            assert case["cosine_similarities"] is None
            continue
        pairs = list(zip(case["deltas"], case["pre_norms"], strict=False))
        cosines = [cosine_similarity(divergence=d, before_norm=n, after_norm=after_norm) for d, n in pairs]
        if case["cosine_similarities"] is None:
            assert set(cosines) == {None}
        else:
            assert cosines == pytest.approx(case["cosine_similarities"], rel=1e-12, abs=1e-12)
            num_compared += len(cosines)
        assert [n - after_norm for n in case["pre_norms"]] == pytest.approx(case["magnitude_shifts"], abs=1e-12)
    assert num_compared > 100


def test_a_replica_is_compared_with_the_mean_that_it_takes() -> None:
    drift = drift_of([[3.0, 4.0], [0.0, 4.0], [-3.0, 0.0]], [3.0, 0.0])
    assert drift.divergence == pytest.approx({0: 4 / 3, 1: 5 / 3, 2: 2.0})
    assert drift.cosine == pytest.approx({0: 0.6, 1: 0.0, 2: -1.0}, abs=1e-12)
    assert drift.magnitude == pytest.approx({0: 2.0, 1: 1.0, 2: 0.0})


def test_mean_of_zero_has_no_direction() -> None:
    drift = drift_of([[0.0, 0.0], [1.0, 0.0]], [0.0, 0.0])
    assert drift == Drift(divergence={0: 0.0, 1: math.inf}, cosine={}, magnitude={0: 0.0, 1: 1.0})


def test_replica_of_zero_has_no_direction() -> None:
    assert drift_of([[0.0, 0.0]], [2.0, 0.0]) == Drift(divergence={0: 1.0}, cosine={0: 0.0}, magnitude={0: -2.0})


def test_small_drift_does_not_drown_in_large_parameters() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(100_000, generator=generator)
    replica = mean + 1e-4 * torch.randn(100_000, generator=generator)
    sums = DriftSums([7])
    sums.add([replica], mean, torch.empty_like(mean))
    expected = float((replica.double() - mean.double()).norm() / mean.double().norm())
    assert sums.drift().divergence == pytest.approx({7: expected}, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_replicas_are_measured_in_single_precision(dtype: torch.dtype) -> None:
    # 300 squared is more than float16 holds
    drift = drift_of([[300.0] * 64], [150.0] * 64, dtype=dtype)
    assert drift.divergence == pytest.approx({0: 1.0})
    assert drift.magnitude == pytest.approx({0: 1200.0})


def test_squares_that_overflow_are_summed_in_double_precision() -> None:
    assert square_sum(torch.tensor([1e25, 1e25])) == pytest.approx(2e50, rel=1e-6)
    assert drift_of([[3e25, 0.0]], [1e25, 0.0]).divergence == pytest.approx({0: 2.0})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_drift_of_what_is_not_finite_is_infinite(value: float) -> None:
    assert drift_of([[value, 1.0]], [1.0, 1.0]).divergence == {0: math.inf}
    assert relative_distance(1.0, value) == math.inf


@given(
    divergence=st.floats(0, 1e6), before_norm=st.floats(0, 1e6), after_norm=st.floats(0, 1e6), scale=st.floats(0.1, 10)
)
def test_cosine_is_a_cosine_whatever_the_rounding(
    divergence: float, before_norm: float, after_norm: float, scale: float
) -> None:
    cosine = cosine_similarity(divergence=divergence, before_norm=before_norm, after_norm=after_norm)
    assert (cosine is None) == (after_norm < 1e-10)
    assert cosine is None or -1.0 <= cosine <= 1.0
    assert cosine_similarity(divergence=0.0, before_norm=scale, after_norm=scale) == 1.0


def test_ranks_are_in_order_whatever_the_order_of_the_blocks() -> None:
    mean = torch.ones(2)
    sums = DriftSums([2, 0])
    sums.add([torch.full((2,), 3.0), torch.full((2,), 2.0), torch.full((2,), 9.0)], mean, torch.empty_like(mean))
    assert list(sums.drift().divergence.items()) == [(0, 1.0), (2, 2.0)]
