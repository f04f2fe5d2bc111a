"""What simulated runs reach: devices are kept busy, and a message costs the coordinator no more with more ranks."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from flodl_core.commands import Command
from flodl_core.epoch_metrics import EpochTotals
from flodl_core.local_options import LocalOptions
from flodl_core.messages import ToCoordinator
from flodl_core.policies import ApplyPolicy
from flodl_core.simulation import Simulation, SimulationSpec, SlowDown, simulate

EIGHT = (1.0, 1.0, 0.9, 0.8, 0.5, 0.5, 0.4, 0.3)


def spec(speeds: tuple[float, ...], options: LocalOptions, **others: Any) -> SimulationSpec:
    return SimulationSpec(
        batch_ms=tuple(10.0 / speed for speed in speeds), batch_size=64, options=options, jitter=0.05, **others
    )


@pytest.mark.parametrize(
    ("policy", "meets", "least"),
    [
        (ApplyPolicy.CADENCE, True, 0.97),
        (ApplyPolicy.CADENCE, False, 0.99),
        (ApplyPolicy.ASYNC, True, 0.96),
        (ApplyPolicy.ASYNC, False, 0.99),
    ],
)
def test_devices_are_kept_busy(policy: ApplyPolicy, meets: bool, least: float) -> None:
    options = LocalOptions(policy=policy, meets=meets)
    two = simulate(spec((1.0, 0.4), options, epoch_size=60_000, num_epochs=3))
    eight = simulate(
        spec(EIGHT, options, epoch_size=60_000, num_epochs=6, slow_downs=(SlowDown(rank=0, factor=0.4, epoch=2),))
    )
    for result, num_samples in ((two, 180_000), (eight, 360_000)):
        assert (result.status, result.num_samples) == ("completed", num_samples)
        assert result.capacity_efficiency >= least
        assert result.wall_s <= 0.61 * result.lockstep_wall_s


def calls_per_message(num_ranks: int, options: LocalOptions) -> float:
    """Function calls that the coordinator makes, of Python and of C, for each message it handles."""
    speeds = tuple((1.0, 0.9, 0.8, 0.5)[rank % 4] for rank in range(num_ranks))
    simulation = Simulation(spec(speeds, options, epoch_size=64 * 8 * num_ranks, num_epochs=2))
    handle = simulation.coordinator.handle
    num_calls = 0

    def count(_frame: FrameType, kind: str, _argument: object) -> None:
        nonlocal num_calls
        num_calls += kind in ("call", "c_call")

    def counted(message: ToCoordinator, now_s: float) -> list[Command]:
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            return handle(message, now_s)
        finally:
            sys.setprofile(before)

    simulation.coordinator.handle = counted  # type: ignore[method-assign]  # counts, and hands on
    simulation.run()
    return num_calls / simulation.num_messages


@pytest.mark.parametrize("policy", ApplyPolicy)
@pytest.mark.parametrize("meets", [True, False])
def test_a_message_costs_no_more_with_more_ranks(policy: ApplyPolicy, meets: bool) -> None:
    options = LocalOptions(policy=policy, meets=meets)
    few, many = calls_per_message(8, options), calls_per_message(512, options)
    assert few > 5
    assert many <= 2 * few


def test_the_book_of_an_epoch_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(world_size: int) -> EpochTotals:
        made.append(world_size)
        return EpochTotals(world_size)

    monkeypatch.setattr("flodl_core.run_book.EpochTotals", counted)
    simulate(spec((1.0,) * 4, LocalOptions(), epoch_size=64 * 40, num_epochs=3))
    assert made == [4] * 3
