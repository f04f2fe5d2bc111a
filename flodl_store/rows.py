"""What a recorder hands to the writer: steps, epochs and events, before they have a ``seq``.

``time_s`` counts from the start of the attempt, ``wall_time`` is the same moment, aware. Floats may be NaN or infinite.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStep:
    """A stretch of one rank's batches within one epoch.

    Attributes:
        global_step: Batches trained by all ranks at its end.
        loss: Mean over its samples, or None.
        lr: Learning rate of its last batch.
        samples_per_s: Over ``busy_ms``.
        busy_ms: Time in forward, backward and step.
    """

    rank: int
    epoch: int
    global_step: int
    time_s: float
    wall_time: datetime
    loss: float | None
    lr: float
    samples_per_s: float
    num_batches: int
    num_samples: int
    busy_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEpochRank:
    """What one rank did in an epoch.

    Attributes:
        loss: Mean over its samples; NaN or None where it trained none.
        batch_share: Share of the epoch's batches.
        scalars: Means of what the training step recorded there.
    """

    rank: int
    device: str
    loss: float | None
    samples_per_s: float
    batch_share: float
    busy_ms: float
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEpoch:
    """An epoch that has ended.

    Attributes:
        epoch: From 0.
        avg_loss: Mean training loss over its samples.
        epoch_ms: Time since the end of the epoch before.
        eval: What the evaluation says of the averaged model, by name.
        scalars: Means of what the training step recorded, over all ranks.
        ranks: One entry a rank.
    """

    epoch: int
    time_s: float
    wall_time: datetime
    avg_loss: float | None
    epoch_ms: float
    lr: float
    num_batches: int
    num_samples: int
    capacity_efficiency: float
    eval: Mapping[str, float] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    ranks: tuple[NewEpochRank, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """Something that happened.

    Attributes:
        kind: The engine's event in words with underscores: ``run_started``, ``sync``, ``anchor_changed``,
            ``epoch_ended``, ``throttled``, ``snapshot_late``, ``worker_lost``, ``run_ended``.
        rank: Whom it happened to, or None where it concerns all.
        payload: The event's other fields. Mappings by rank have the rank as text: ``{"divergence": {"0": 0.01}}``.
    """

    kind: str
    rank: int | None
    time_s: float
    wall_time: datetime
    payload: Mapping[str, Any] = field(default_factory=dict)


Row = NewStep | NewEpoch | NewEvent
