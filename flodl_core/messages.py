"""What workers and the coordinator say to each other.

All messages are frozen. A message that carries tensors gives its receiver the right to read them until the answer
that its docstring names has been sent; then they are the sender's again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flodl_core.errors import WorkerFailure
from flodl_core.idle_time import NOT_IDLE, IdleMs

FINAL_ROUND = -1
"""The round of the snapshot that a worker hands in as its last act."""

Scalars = Mapping[str, tuple[float, int]]
"""Name to (sum, batches that recorded it)."""

Payload = object
"""Tensors, which the coordinator passes on and never looks into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """A consecutive slice of an epoch's permutation.

    Attributes:
        epoch: The epoch, from 0.
        offset: First position in the permutation.
        size: Samples; 0 tells a rank that the epoch passed without work for it.
    """

    epoch: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a rank brings to an average, beside its tensors.

    Attributes:
        rank: Who enters.
        round: The round that the average closes.
        num_samples: Samples trained since the rank's previous entry: its weight.
        total_batches: Batches that the rank has trained in the run.
        completed: Samples that it has trained of each epoch which no average has completed yet, by epoch.
        is_finite: Whether all its tensors are finite.
    """

    rank: int
    round: int
    num_samples: int
    total_batches: int
    completed: Mapping[int, int]
    is_finite: bool


# Worker -> coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesDone:
    """Optimizer steps finished since the last report, all of one epoch.

    Attributes:
        rank: Who reports.
        round: The round that the batches belong to.
        epoch: The epoch that they belong to.
        num_batches: Optimizer steps.
        num_samples: Samples in them.
        busy_ms: Time in gather, forward, backward and step, and emulated slowness.
        num_full_batches: Those of full size, without the rank's very first, ...
        full_busy_ms: ... and their share of ``busy_ms``: what speed is estimated from.
        loss_sum: Sum over samples.
        scalars: What ``record_scalar`` collected.
        lr: Learning rate of the first parameter group in the last batch.
        start_s: When the first of the batches began, on the host's monotonic clock.
        end_s: When the last of them ended.
        num_syncs: Sync only: averages since its last report in which the rank led, ...
        sync_ms: ... and what they cost together.
        discarded_samples: Sync over an all-reduce only: those whose gradients were left out for not being finite.
        idle: What kept the rank from training since its last report.
    """

    rank: int
    round: int
    epoch: int
    num_batches: int
    num_samples: int
    busy_ms: float
    num_full_batches: int
    full_busy_ms: float
    loss_sum: float
    scalars: Scalars
    lr: float
    start_s: float
    end_s: float
    num_syncs: int = 0
    sync_ms: float = 0.0
    discarded_samples: int = 0
    idle: IdleMs = NOT_IDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowDone:
    """The rank has done its part of a round."""

    rank: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncDone:
    """The rank has taken an average; never counted as a batch.

    Attributes:
        stall_ms: Time for which taking part kept the rank from training, without waiting for others.
        discarded_samples: What a rank that was left out trained between its snapshot and the average, and lost.
    """

    rank: int
    round: int
    stall_ms: float
    discarded_samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A rank's tensors for an average. They are the coordinator's until it sends ``Update`` for the round."""

    entry: Entry
    payload: Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """An average has been computed, by the averaging thread or by the last rank to arrive at a rendezvous.

    Attributes:
        round: The round that it closes.
        cost_ms: From the last arrival to the release, in milliseconds.
        wait_ms: What each rank waited for the last arrival, by rank.
        weights: Samples by rank, of those that were averaged.
        excluded: Ranks left out for not being finite.
        discarded_samples: What they had trained since their previous entry.
        divergence: ``||before - after|| / ||after||`` by rank, of the finite ones; ``after`` is the mean itself,
            whatever an outer optimizer makes of it.
        cosine: Cosine similarity of ``before`` and ``after`` by rank.
        magnitude: ``||before|| - ||after||`` by rank.
        taken_ms: What computing it beside the workers took of each one's time, where they train on the same cores.
        epochs: Epochs that this average completes, ascending.
        global_step: Batches trained by all ranks.
        payload: The average, where it has to be handed out or kept; else None.
    """

    round: int
    cost_ms: float
    wait_ms: Mapping[int, float]
    weights: Mapping[int, int]
    excluded: tuple[int, ...]
    discarded_samples: int
    divergence: Mapping[int, float]
    epochs: tuple[int, ...]
    global_step: int
    payload: Payload | None
    cosine: Mapping[int, float] = field(default_factory=dict)
    magnitude: Mapping[int, float] = field(default_factory=dict)
    taken_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExiting:
    """The worker's last message.

    Attributes:
        failure: What ended it, or None when it was told to end.
    """

    rank: int
    failure: WorkerFailure | None = None


# From the run's owner and its other threads to the coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """Stop after the batch under way and average what was trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackFailed:
    """``eval_fn`` or ``metrics_fn`` raised."""

    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingFailed:
    """The averaging thread raised: ``Averaged`` for the round will not come."""

    round: int
    error: BaseException


# Coordinator -> worker


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEpoch:
    """Train this slice after those that were dealt before."""

    plan: EpochPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRound:
    """The rank's window of the next round.

    Attributes:
        deadline_ms: Busy time after which no batch is started that does not fit, or None for none.
        count: Batches after which the window ends.
        planned: Batches expected of the rank, ...
        planned_total: ... and of all ranks: how fast the schedule moves on between averages.
    """

    round: int
    deadline_ms: float | None
    count: int
    planned: int
    planned_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncNow:
    """End the window of this round after the batch under way and meet the others."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """The rank is too far ahead: end the window and wait for the average of this round."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParams:
    """Hand in a snapshot after the batch under way and train on."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The average of a round. The payload may be read until the next ``RequestParams`` has been answered.

    Attributes:
        payload: The average; None when the rank's snapshot came too late for it.
        is_excluded: The rank was left out for not being finite and must take the average whole.
        epochs: Epochs that the average completes.
        stop: Sync only: apply it and end.
        leader: Sync only: the rank that speaks for all.
    """

    round: int
    payload: Payload | None
    global_step: int
    is_excluded: bool = False
    epochs: tuple[int, ...] = ()
    stop: bool = False
    leader: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """End after the batch under way.

    Attributes:
        hand_in: Whether to hand in a last snapshot before.
    """

    hand_in: bool


ToCoordinator = (
    BatchesDone
    | WindowDone
    | SyncDone
    | Snapshot
    | Averaged
    | AveragingFailed
    | WorkerExiting
    | StopRequested
    | CallbackFailed
)
ToWorker = StartEpoch | OpenRound | SyncNow | Throttle | RequestParams | Update | Shutdown
