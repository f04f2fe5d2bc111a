"""Local SGD while replicas drift apart: anchor and overshoot stay where they are, on both backends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from flodl_core.events import AnchorChanged, GuardChanged
from flodl_core.local_options import LocalOptions
from flodl_core.messages import Averaged
from tests.flodl_core.local_driver import NOW_S, Driver
from tests.flodl_core.message_factories import (
    BATCH_SIZE,
    answer,
    averaged,
    computation,
    events,
    report,
    snapshot,
    sync_done,
    window_done,
)

RISING = (0.1, 0.2, 0.3)
FALLING = 0.1
FIRST_COST_MS = 8.0
COST_GROWS = 2.0
"""Each average costs so many times as much as the one before: each round would be longer than the last."""


@dataclass
class Rounds:
    """A run of two ranks, of 10 and 25 ms a batch, round by round.

    Attributes:
        anchors: The anchor after each round.
        overshoots: The overshoot's limit after each round.
    """

    options: LocalOptions
    anchors: list[int] = field(default_factory=list)
    overshoots: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.driver = Driver(epoch_size=100_000 * BATCH_SIZE, options=self.options)

    def take(self, divergence: float, *, excluded: tuple[int, ...] = ()) -> None:
        """A whole round, and its average with this divergence."""
        round_, anchor = len(self.anchors), self.driver.coordinator.anchor
        for rank, ms, num_batches in ((0, 10.0, 5 * anchor // 2), (1, 25.0, anchor)):
            self.driver.handle(*[report(rank, 1, round_=round_, ms=ms) for _ in range(num_batches)])
        cost_ms = FIRST_COST_MS * COST_GROWS**round_
        commands = self.driver.handle(window_done(0, round_), window_done(1, round_))
        message = averaged(round_, weights={0: 8, 1: 8}, cost_ms=cost_ms)
        if not self.options.meets:
            assert commands, "snapshots are asked for"
            snapshots = [snapshot(rank, round_=round_) for rank in (0, 1)]
            message = answer(computation(self.driver.handle(*snapshots)))
        self.driver.handle(_drifted(message, divergence, excluded))
        self.driver.handle(*[sync_done(rank, round_, stall_ms=cost_ms) for rank in (0, 1)])
        self.anchors.append(self.driver.coordinator.anchor)
        self.overshoots.append(self.driver.coordinator._overshoot.limit)


def _drifted(message: Averaged, divergence: float, excluded: tuple[int, ...]) -> Averaged:
    return replace(message, divergence={0: divergence / 2, 1: divergence}, excluded=excluded)


@pytest.fixture(params=[False, True], ids=["cpu", "all-reduce"])
def rounds(request: pytest.FixtureRequest) -> Rounds:
    return Rounds(LocalOptions(meets=request.param, anchor=4))


def _after_the_rise(rounds: Rounds) -> int:
    """Let replicas drift apart; returns the last round whose length was decided before that was known."""
    for divergence in RISING:
        rounds.take(divergence)
    # through the CPU a round is closed before its own average is computed
    return 1 if rounds.options.meets else 2


def test_anchor_stays_while_drift_rises_and_grows_again_once_it_falls(rounds: Rounds) -> None:
    last_free = _after_the_rise(rounds)
    rounds.take(0.4)
    held = rounds.anchors[last_free]
    assert held > 4, "averages are costly: the anchor had grown"
    assert rounds.anchors[last_free:] == [held] * (4 - last_free)
    rounds.take(FALLING)
    rounds.take(FALLING)
    assert rounds.anchors[-1] > held


def test_overshoot_stays_while_drift_rises_and_grows_again_once_it_falls(rounds: Rounds) -> None:
    for divergence in (*RISING, 0.4, FALLING):
        rounds.take(divergence)
    assert rounds.overshoots == [6, 7, 7, 7, 8]


def test_guard_says_when_it_begins_to_hold_and_when_it_ceases(rounds: Rounds) -> None:
    for divergence in (*RISING, 0.4, FALLING, FALLING):
        rounds.take(divergence)
    changes = [event for event in events(rounds.driver.all) if isinstance(event, GuardChanged)]
    assert changes == [
        GuardChanged(time_s=NOW_S, round=2, is_holding=True, divergence=0.3),
        GuardChanged(time_s=NOW_S, round=4, is_holding=False, divergence=FALLING),
    ]
    told = [event.round for event in events(rounds.driver.all) if isinstance(event, AnchorChanged)]
    assert told == ([0, 1, 4, 5] if rounds.options.meets else [1, 2, 5])


@pytest.mark.parametrize("threshold", [None, 0.5], ids=["guard off", "below the threshold"])
def test_drift_that_the_guard_does_not_mind_holds_nothing(rounds: Rounds, threshold: float | None) -> None:
    free = Rounds(replace(rounds.options, divergence_threshold=threshold))
    for divergence in (*RISING, 0.4):
        free.take(divergence)
    assert free.anchors[-4] < free.anchors[-3] < free.anchors[-2] < free.anchors[-1]
    assert free.overshoots == [6, 7, 8, 9]
    assert not any(isinstance(event, GuardChanged) for event in events(free.driver.all))


def test_average_without_a_rank_that_is_not_finite_lets_no_rank_stream_further(rounds: Rounds) -> None:
    rounds.take(FALLING)
    rounds.take(FALLING, excluded=(1,))
    rounds.take(FALLING)
    assert rounds.overshoots == [6, 6, 7]
