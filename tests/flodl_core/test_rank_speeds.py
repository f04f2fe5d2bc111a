"""What is known of ranks' speeds does not depend on the way in which it came to be known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.rank_speeds import RankSpeeds

NUM_RANKS = 4
estimates = st.lists(
    st.tuples(st.integers(0, NUM_RANKS - 1), st.one_of(st.just(0.0), st.floats(0.1, 100.0))), min_size=1, max_size=20
)


def known(speeds: RankSpeeds) -> list[float]:
    return [speeds.total_rate, speeds.fastest_rate, *(speeds.rate(rank) for rank in range(NUM_RANKS))]


@given(estimates, st.sampled_from([None, 0, 3]), st.floats(1.0, 10.0))
def test_estimates_one_by_one_come_to_the_same_as_all_at_once(
    given_estimates: list[tuple[int, float]], slow_rank: int | None, ratio: float
) -> None:
    one_by_one = RankSpeeds(range(NUM_RANKS), slow_rank=slow_rank, ratio=ratio)
    for rank, batch_ms in given_estimates:
        one_by_one.measure(rank, batch_ms)
    at_once = RankSpeeds(range(NUM_RANKS), slow_rank=slow_rank, ratio=ratio)
    at_once.measure_all(dict(given_estimates))
    assert known(one_by_one) == pytest.approx(known(at_once), rel=1e-9)
    assert one_by_one.all_measured == at_once.all_measured


def test_a_rank_that_is_measured_for_the_first_time_may_be_the_fastest() -> None:
    speeds = RankSpeeds(range(2))
    speeds.measure(0, 20.0)
    assert (speeds.fastest, speeds.all_measured) == (0, False)
    speeds.measure(1, 10.0)
    assert (speeds.fastest, speeds.all_measured) == (1, True)
    assert speeds.total_rate == pytest.approx(0.15)
