"""What a run tells its owner while it goes on: the one source of the recorder, the timeline and the page.

Times are seconds since the run started, on the coordinator's clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flodl_core.idle_time import IdleMs


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """Training begins.

    Attributes:
        devices: Label of each rank's device.
        num_epochs: Epochs planned.
        num_samples: Samples in an epoch.
    """

    time_s: float
    devices: tuple[str, ...]
    num_epochs: int
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """A stretch of one rank's batches within one epoch: what becomes a step row.

    Attributes:
        global_step: Batches trained by all ranks when the window was reported.
        loss: Mean over the window's samples; NaN where a batch's was.
        lr: Learning rate of the first parameter group in the window's last batch.
        samples_per_s: Over the busy time of the window.
        start_s: When its first batch began, ...
        end_s: ... and its last one ended, both like ``time_s``.
        idle: What kept the rank from training between the last window's end and this one's.
    """

    time_s: float
    rank: int
    epoch: int
    global_step: int
    loss: float
    lr: float
    samples_per_s: float
    num_batches: int
    num_samples: int
    busy_ms: float
    start_s: float
    end_s: float
    idle: IdleMs


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncEvent:
    """Replicas were averaged.

    Attributes:
        round: The round that the average closed; in sync the last of ``num_syncs``.
        epoch: The epoch that the average completed, or None.
        num_syncs: Averages that this event stands for: 1, except in sync, which reports several a time.
        duration_ms: Cost that averaging put on the workers, all of ``num_syncs`` together.
        wait_ms: Time that each rank waited for the others to arrive, by rank.
        weights: Samples with which each rank entered, by rank; a rank that was left out is absent.
        divergence: ``||before - after|| / ||after||`` of each rank's parameters, by rank; empty in sync.
        cosine: Cosine similarity of each rank's parameters before and after, by rank; empty in sync.
        magnitude: ``||before|| - ||after||`` of each rank's parameters, by rank; empty in sync.
        excluded: Ranks left out because their parameters were not finite.
    """

    time_s: float
    round: int
    epoch: int | None
    global_step: int
    num_syncs: int
    duration_ms: float
    wait_ms: Mapping[int, float]
    weights: Mapping[int, int]
    divergence: Mapping[int, float]
    excluded: tuple[int, ...]
    anchor: int
    cosine: Mapping[int, float] = field(default_factory=dict)
    magnitude: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorChanged:
    """El Che moved its anchor, the batches that the slowest rank does in a round."""

    time_s: float
    round: int
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardChanged:
    """The convergence guard began or ceased to hold anchor and overshoot.

    Attributes:
        is_holding: Whether it holds them now: replicas drift apart.
        divergence: The largest ``||before - after|| / ||after||`` of the average that decided.
    """

    time_s: float
    round: int
    is_holding: bool
    divergence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded:
    """Every sample of an epoch has been trained and is in an average."""

    time_s: float
    epoch: int
    num_samples: int
    global_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """A rank was told to wait for the next average."""

    time_s: float
    rank: int
    round: int
    num_batches_ahead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLate:
    """A rank has not handed in its snapshot within its limit.

    The others are averaged without it; where none has handed in its own yet, they all wait on.
    """

    time_s: float
    rank: int
    round: int
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """A worker ended before its time."""

    time_s: float
    rank: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """Nothing more will be trained.

    Attributes:
        status: ``completed``, ``cancelled`` or ``failed``.
    """

    time_s: float
    status: str
    global_step: int


Event = (
    RunStarted
    | StepWindow
    | SyncEvent
    | AnchorChanged
    | GuardChanged
    | EpochEnded
    | Throttled
    | SnapshotLate
    | WorkerLost
    | RunEnded
)
