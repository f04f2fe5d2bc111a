"""Messages with everything that a test does not care about filled in, and commands in short."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flodl_core.commands import Command, ComputeAverage, Emit, EpochReady, Send
from flodl_core.errors import WorkerFailure
from flodl_core.events import Event
from flodl_core.idle_time import NOT_IDLE, IdleMs
from flodl_core.messages import (
    FINAL_ROUND,
    Averaged,
    BatchesDone,
    Entry,
    EpochPlan,
    OpenRound,
    RequestParams,
    Scalars,
    Shutdown,
    Snapshot,
    StartEpoch,
    SyncDone,
    ToWorker,
    Update,
    WindowDone,
    WorkerExiting,
)
from flodl_core.rounds import NO_COUNT

BATCH_SIZE = 8


def plan(epoch: int, offset: int, size: int) -> EpochPlan:
    return EpochPlan(epoch=epoch, offset=offset, size=size)


def start_epoch(epoch: int, offset: int, size: int) -> StartEpoch:
    return StartEpoch(plan=plan(epoch, offset, size))


def open_round(
    round_: int, *, count: int = NO_COUNT, deadline_ms: float | None = None, planned: int = 1, total: int = 1
) -> OpenRound:
    return OpenRound(round=round_, deadline_ms=deadline_ms, count=count, planned=planned, planned_total=total)


def report(
    rank: int,
    num_batches: int = 1,
    *,
    round_: int = 0,
    epoch: int = 0,
    num_samples: int | None = None,
    ms: float = 10.0,
    num_full: int | None = None,
    loss: float = 1.0,
    scalars: Scalars | None = None,
    lr: float = 0.1,
    start_s: float = 0.0,
    num_syncs: int = 0,
    sync_ms: float = 0.0,
    idle: IdleMs = NOT_IDLE,
) -> BatchesDone:
    """Batches of ``ms`` each, full ones unless said otherwise; ``loss`` is the mean."""
    samples = num_batches * BATCH_SIZE if num_samples is None else num_samples
    full = num_batches if num_full is None else num_full
    return BatchesDone(
        rank=rank,
        round=round_,
        epoch=epoch,
        num_batches=num_batches,
        num_samples=samples,
        busy_ms=ms * num_batches,
        num_full_batches=full,
        full_busy_ms=ms * full,
        loss_sum=loss * samples,
        scalars=scalars or {},
        lr=lr,
        start_s=start_s,
        end_s=start_s + ms * num_batches / 1e3,
        num_syncs=num_syncs,
        sync_ms=sync_ms,
        idle=idle,
    )


def entry(
    rank: int,
    *,
    round_: int = 0,
    num_samples: int = BATCH_SIZE,
    total_batches: int = 1,
    completed: Mapping[int, int] | None = None,
    is_finite: bool = True,
) -> Entry:
    return Entry(
        rank=rank,
        round=round_,
        num_samples=num_samples,
        total_batches=total_batches,
        completed=completed or {},
        is_finite=is_finite,
    )


def snapshot(
    rank: int,
    *,
    round_: int = 0,
    num_samples: int = BATCH_SIZE,
    total_batches: int = 1,
    completed: Mapping[int, int] | None = None,
    is_finite: bool = True,
) -> Snapshot:
    return Snapshot(
        entry=entry(
            rank,
            round_=round_,
            num_samples=num_samples,
            total_batches=total_batches,
            completed=completed,
            is_finite=is_finite,
        ),
        payload=f"tensors of rank {rank}",
    )


def last_snapshot(rank: int, *, num_samples: int = BATCH_SIZE, is_finite: bool = True) -> Snapshot:
    return snapshot(rank, round_=FINAL_ROUND, num_samples=num_samples, is_finite=is_finite)


def averaged(
    round_: int = 0,
    *,
    epochs: tuple[int, ...] = (),
    weights: Mapping[int, int] | None = None,
    excluded: tuple[int, ...] = (),
    discarded_samples: int = 0,
    global_step: int = 0,
    cost_ms: float = 3.0,
    payload: object = "mean",
) -> Averaged:
    return Averaged(
        round=round_,
        cost_ms=cost_ms,
        wait_ms={},
        weights=weights or {},
        excluded=excluded,
        discarded_samples=discarded_samples,
        divergence={},
        epochs=epochs,
        global_step=global_step,
        payload=payload,
    )


def answer(command: ComputeAverage, *, cost_ms: float = 3.0, payload: object = "mean") -> Averaged:
    """What the averaging thread answers."""
    terms = command.tally
    return averaged(
        command.round,
        epochs=terms.epochs,
        weights=terms.num_samples,
        excluded=terms.excluded,
        discarded_samples=terms.discarded_samples,
        global_step=terms.global_step,
        cost_ms=cost_ms,
        payload=payload,
    )


def window_done(rank: int, round_: int = 0) -> WindowDone:
    return WindowDone(rank=rank, round=round_)


def sync_done(rank: int, round_: int = 0, *, stall_ms: float = 0.5) -> SyncDone:
    return SyncDone(rank=rank, round=round_, stall_ms=stall_ms)


def exiting(rank: int) -> WorkerExiting:
    return WorkerExiting(rank=rank)


def dying(rank: int) -> WorkerExiting:
    failure = WorkerFailure(rank=rank, error=RuntimeError("out of memory"), traceback="Traceback ...")
    return WorkerExiting(rank=rank, failure=failure)


def to(rank: int, message: ToWorker) -> Send:
    return Send(rank=rank, message=message)


def shutdown(rank: int, *, hand_in: bool) -> Send:
    return to(rank, Shutdown(hand_in=hand_in))


def request(rank: int, round_: int) -> Send:
    return to(rank, RequestParams(round=round_))


def update(
    rank: int,
    round_: int,
    *,
    global_step: int,
    payload: object = "mean",
    is_excluded: bool = False,
    epochs: tuple[int, ...] = (),
) -> Send:
    message = Update(round=round_, payload=payload, global_step=global_step, is_excluded=is_excluded, epochs=epochs)
    return to(rank, message)


def events(commands: Iterable[Command]) -> list[Event]:
    return [command.event for command in commands if isinstance(command, Emit)]


def sends(commands: Iterable[Command]) -> list[Send]:
    return [command for command in commands if isinstance(command, Send)]


def reported_epochs(commands: Iterable[Command]) -> list[int]:
    return [command.metrics.epoch for command in commands if isinstance(command, EpochReady)]


def computation(commands: Iterable[Command]) -> ComputeAverage:
    """The one average that is asked for."""
    (command,) = [command for command in commands if isinstance(command, ComputeAverage)]
    return command
