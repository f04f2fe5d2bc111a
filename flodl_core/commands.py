"""What the coordinator wants done: the whole of its output."""

from collections.abc import Mapping
from dataclasses import dataclass

from flodl_core.epoch_metrics import EpochMetrics
from flodl_core.events import Event
from flodl_core.messages import Payload, Snapshot, ToWorker
from flodl_core.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Deliver a message to a rank."""

    rank: int
    message: ToWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    """Tell the run's owner."""

    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReady:
    """Evaluate the consensus, complete the metrics with the result, and hand them out. In order of epochs."""

    metrics: EpochMetrics
    payload: Payload | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeAverage:
    """Average these snapshots off the coordinator's thread and answer with ``Averaged``."""

    round: int
    snapshots: Mapping[int, Snapshot]
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseMeetings:
    """Wake the ranks that wait at the rendezvous; no further meeting will take place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMeetings:
    """Sync: let the next meeting tell all ranks to end, so that they do so in the same round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Every worker has ended and everything is averaged.

    Attributes:
        status: ``completed``, ``cancelled`` or ``failed``.
        payload: The last average of replicas handed in at a stop; None where the last epoch's stands, or nothing was.
        error: Why nothing could be averaged, or a callback's exception.
    """

    status: str
    payload: Payload | None
    error: BaseException | None


Command = Send | Emit | EpochReady | ComputeAverage | CloseMeetings | StopMeetings | Finish
