"""A Local SGD coordinator to send messages to, and the situations that its tests start from."""

from __future__ import annotations

from flodl_core.commands import Command, ComputeAverage, Emit, Finish
from flodl_core.coordinator import RunPlan
from flodl_core.events import RunEnded, SyncEvent
from flodl_core.local_coordinator import LocalCoordinator
from flodl_core.local_options import LocalOptions
from flodl_core.messages import (
    Shutdown,
    Snapshot,
    ToCoordinator,
)
from tests.flodl_core.message_factories import (
    BATCH_SIZE,
    computation,
    report,
    sends,
    snapshot,
    window_done,
)

NOW_S = 1.0
EPOCH_SIZE = 20 * BATCH_SIZE


class Driver:
    """A coordinator, and the commands that it gave."""

    def __init__(
        self,
        *,
        world_size: int = 2,
        epoch_size: int = EPOCH_SIZE,
        num_epochs: int = 2,
        options: LocalOptions | None = None,
    ) -> None:
        plan = RunPlan(
            devices=tuple(f"cpu{rank}" for rank in range(world_size)),
            epoch_size=epoch_size,
            batch_size=BATCH_SIZE,
            num_epochs=num_epochs,
        )
        self.coordinator = LocalCoordinator(plan, options or LocalOptions(anchor=4, max_overshoot=2), start_s=0.0)
        self.all = self.coordinator.start()

    def handle(self, *messages: ToCoordinator, now_s: float = NOW_S) -> list[Command]:
        """Give the messages and return what the last of them led to."""
        commands: list[Command] = []
        for message in messages:
            commands = self.coordinator.handle(message, now_s)
            self.all += commands
        return commands

    def tick(self, now_s: float) -> list[Command]:
        commands = self.coordinator.tick(now_s)
        self.all += commands
        return commands

    def shutdowns(self) -> list[int]:
        return [send.rank for send in sends(self.all) if isinstance(send.message, Shutdown)]


def measured(*, options: LocalOptions | None = None) -> Driver:
    """Rank 0 takes 10 ms a batch and rank 1 25 ms; both have done two batches and have more, in round 0."""
    driver = Driver(options=options)
    driver.handle(report(0, 2), report(1, 2, ms=25.0))
    return driver


def collecting() -> Driver:
    """Both windows of round 0 have ended and snapshots are asked for."""
    driver = measured()
    driver.handle(window_done(0), window_done(1))
    return driver


def both_snapshots() -> tuple[Snapshot, Snapshot]:
    first, second = (snapshot(rank, num_samples=16, total_batches=2, completed={0: 16}) for rank in (0, 1))
    return first, second


def computing_average() -> tuple[Driver, ComputeAverage]:
    """All snapshots are in."""
    driver = collecting()
    return driver, computation(driver.handle(*both_snapshots()))


def sync_event(
    *, round_: int = 0, global_step: int = 4, weights: dict[int, int], excluded: tuple[int, ...] = ()
) -> Emit:
    return Emit(
        event=SyncEvent(
            time_s=NOW_S,
            round=round_,
            epoch=None,
            global_step=global_step,
            num_syncs=1,
            duration_ms=0.0,
            wait_ms={},
            weights=weights,
            divergence={},
            excluded=excluded,
            anchor=4,
        )
    )


def run_ended(
    status: str, *, global_step: int, payload: object = "mean", error: BaseException | None = None
) -> list[Command]:
    return [
        Emit(event=RunEnded(time_s=NOW_S, status=status, global_step=global_step)),
        Finish(status=status, payload=payload, error=error),
    ]
