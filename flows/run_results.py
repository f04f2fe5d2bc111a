"""What the steps of a training run hand on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from flodl_core import DdpBuilder, EpochMetrics, FlodlError, Progress, RunTotals, TrainedState, WorkerFailure
from flodl_store.params import RunParams
from flows.recipes import Recipe

Status = Literal["completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that could start.

    Attributes:
        params: Every parameter, the recipe's defaults filled in.
        recipe: What will be trained.
        builder: The engine's, with everything set.
    """

    params: RunParams
    recipe: Recipe
    builder: DdpBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """How training ended.

    Attributes:
        status: ``failed`` where a worker failed, also if there is an average of the others.
        state: What was trained, or None where nothing is left of it.
        metrics: Of every epoch that was trained to its end.
        progress: How far it came: what was done, in all and by rank.
        failures: The workers that failed.
        error: Why there is no state, or None.
        devices: Each rank's device, as it was asked for.
        backend: How the replicas were averaged.
    """

    status: Status
    state: TrainedState | None
    metrics: tuple[EpochMetrics, ...]
    progress: Progress
    failures: tuple[WorkerFailure, ...]
    error: FlodlError | None
    devices: tuple[str, ...]
    backend: str

    @property
    def totals(self) -> RunTotals:
        """What the run did, in all and by rank."""
        return self.progress.totals

    @property
    def num_syncs(self) -> int:
        """Averages taken."""
        return self.progress.num_syncs


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The trained state as a file.

    Attributes:
        state_path: A safetensors file.
        state_sha256: Of its bytes, 64 hexadecimal digits.
    """

    state_path: Path
    state_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What ``flodl train --json`` prints.

    Attributes:
        run_id: The run's name.
        attempt: Which try of the run this was, from 1.
        status: ``completed``, ``failed`` or ``cancelled``.
        recipe: The name that it was asked for by.
        policy: When the replicas were averaged.
        backend: How they were averaged.
        devices: Each rank's device.
        workers: What the workers are: ``thread``.
        epochs: Epochs trained to their end.
        avg_loss: Mean training loss of the last of them, or None.
        eval: What the recipe's evaluation says of the published state; empty without one.
        num_samples: Samples trained by all ranks.
        num_batches: Optimizer steps of all ranks.
        num_syncs: Averages.
        capacity_efficiency: How busy the devices were kept.
        wall_s: From the first batch's start to the last one's end, in seconds.
        state_path: Where the trained state is, or None.
        state_sha256: SHA-256 of that file, or None.
        not_recorded: What the database lacks of the run and why, or None.
    """

    run_id: str
    attempt: int
    status: Status
    recipe: str
    policy: str
    backend: str
    devices: tuple[str, ...]
    workers: str
    epochs: int
    avg_loss: float | None
    eval: Mapping[str, float]
    num_samples: int
    num_batches: int
    num_syncs: int
    capacity_efficiency: float
    wall_s: float
    state_path: str | None
    state_sha256: str | None
    not_recorded: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, in this order; ``not_recorded`` only where there is something to say."""
        fields = asdict(self)
        if self.not_recorded is None:
            del fields["not_recorded"]
        return fields
