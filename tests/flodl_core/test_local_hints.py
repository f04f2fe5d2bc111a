"""Local SGD whose owner said how fast the ranks are: the first round goes by that, until they are measured."""

from __future__ import annotations

import pytest

from flodl_core.local_options import LocalOptions
from flodl_core.messages import OpenRound
from flodl_core.policies import ApplyPolicy
from flodl_core.rounds import NO_COUNT
from tests.flodl_core.local_driver import Driver
from tests.flodl_core.message_factories import open_round, report, sends, start_epoch, to, window_done


def _hinted(policy: ApplyPolicy) -> Driver:
    """Rank 1 was said to be slow, and rank 0 2.5 times as fast."""
    return Driver(options=LocalOptions(policy=policy, anchor=4, max_overshoot=2, speed_hint=(1, 2.5)))


@pytest.mark.parametrize("policy", [ApplyPolicy.CADENCE, ApplyPolicy.ASYNC])
def test_first_round_is_planned_by_the_hint(policy: ApplyPolicy) -> None:
    assert [send for send in sends(_hinted(policy).all) if isinstance(send.message, OpenRound)] == [
        to(0, open_round(0, count=10, planned=10, total=14)),
        to(1, open_round(0, count=4, planned=4, total=14)),
    ]


def test_hint_deals_the_first_chunks() -> None:
    driver = _hinted(ApplyPolicy.CADENCE)
    assert driver.handle(report(0, 1)) == [to(0, start_epoch(0, 32, 48))], "half of what it can do until both finish"


@pytest.mark.parametrize(
    ("policy", "deadline_ms", "counts"),
    [(ApplyPolicy.CADENCE, 80.0, (NO_COUNT, NO_COUNT)), (ApplyPolicy.ASYNC, None, (8, 4))],
)
def test_measurement_replaces_the_hint_within_the_first_round(
    policy: ApplyPolicy, deadline_ms: float | None, counts: tuple[int, int]
) -> None:
    driver = _hinted(policy)
    assert not any(isinstance(send.message, OpenRound) for send in sends(driver.handle(report(0, 2))))
    commands = driver.handle(report(1, 2, ms=20.0))  # it is twice as slow, not 2.5 times
    assert [send for send in sends(commands) if isinstance(send.message, OpenRound)] == [
        to(0, open_round(0, deadline_ms=deadline_ms, count=counts[0], planned=8, total=12)),
        to(1, open_round(0, deadline_ms=deadline_ms, count=counts[1], planned=4, total=12)),
    ]


def test_hint_that_was_wrong_is_forgotten_by_the_second_round() -> None:
    driver = _hinted(ApplyPolicy.ASYNC)
    driver.handle(report(0, 2, ms=40.0), report(1, 2, ms=10.0), window_done(0))
    commands = driver.handle(window_done(1))
    assert [send for send in sends(commands) if isinstance(send.message, OpenRound)] == [
        to(0, open_round(1, count=4, planned=4, total=20)),
        to(1, open_round(1, count=16, planned=16, total=20)),
    ]
