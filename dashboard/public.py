"""What the REST interface hands out. Numbers that are not finite are the strings NaN, Infinity and -Infinity."""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from flodl_store.plain_json import nonfinite_as_text
from flodl_store.runs import RunStatus

T = TypeVar("T")
Nonfinite = Literal["NaN", "Infinity", "-Infinity"]
Number = Annotated[float, PlainSerializer(nonfinite_as_text, return_type=float | Nonfinite, when_used="json")]
Plain = Annotated[Any, PlainSerializer(nonfinite_as_text, when_used="json")]


class Public(BaseModel):
    """Root of them: read from the store's views and rows alike, so that a new column there is no leak here."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class Listing(Public, Generic[T]):
    """A part of a list."""

    items: list[T]
    next: str | None = Field(description="What to pass as cursor for the part after this one; null at the end")


class WorkerPublic(Public):
    """One rank and its device."""

    rank: int
    device: str
    device_name: str | None
    memory_bytes: int | None
    slowdown: float = Field(description="Factor by which it is slowed on purpose")


class RunPublic(Public):
    """A run. Times are UTC; what is not known yet is null."""

    id: str = Field(description="26 characters that sort by the time of their making")
    name: str | None
    status: RunStatus = Field(description="lost: it has not ended, and was last heard of more than 30 s ago")
    recipe: str
    policy: str
    backend: str | None
    world_size: int | None
    batch_size: int | None = Field(description="Of each worker")
    num_epochs: int | None
    epoch: int = Field(description="Epochs trained to their end")
    avg_loss: Number | None = Field(description="Mean training loss of the last of them")
    total_samples: int | None = Field(description="Samples that all epochs have together")
    num_samples: int = Field(description="Samples trained so far")
    num_batches: int
    num_syncs: int = Field(description="Averages")
    capacity_efficiency: Number | None = Field(description="How busy the devices were kept, 1 at best")
    anchor: int | None = Field(description="Batches that the slowest rank does between two averages")
    global_step: int = Field(description="Batches trained by all ranks")
    wall_s: Number | None
    eval: dict[str, Number] = Field(description="Evaluation of the published state")
    seed: int
    config: dict[str, Plain] = Field(description="Every parameter")
    training_meta: dict[str, Plain]
    graph_hash: str | None
    version: str | None
    git_commit: str | None
    flow_run_id: str | None
    parent_run_id: str | None
    tags: list[str]
    notes: str | None
    error: str | None
    attempt: int
    last_seq: int = Field(description="The newest seq of its steps, epochs and events")
    created_at: datetime
    started_at: datetime | None
    heartbeat_at: datetime | None
    ended_at: datetime | None
    cancel_requested_at: datetime | None
    workers: list[WorkerPublic]


class RunInList(RunPublic):
    """A run with the curve that a list shows of it."""

    loss_by_epoch: list[Number | None] = Field(description="At most 60 epochs, evenly spaced")


class StepPublic(Public):
    """A stretch of one rank's batches."""

    seq: int
    attempt: int
    rank: int
    epoch: int
    global_step: int
    time_s: float = Field(description="Since the start of the attempt")
    wall_time: datetime
    loss: Number | None
    lr: Number | None
    samples_per_s: Number | None = Field(description="Over busy_ms")
    num_batches: int
    num_samples: int
    busy_ms: Number | None


class EpochRankPublic(Public):
    """What one rank did in an epoch."""

    rank: int
    device: str
    loss: Number | None
    samples_per_s: Number | None
    batch_share: Number | None
    busy_ms: Number | None
    scalars: dict[str, Number]


class EpochPublic(Public):
    """An epoch that has ended."""

    seq: int
    attempt: int
    epoch: int = Field(description="From 0")
    time_s: float
    wall_time: datetime
    avg_loss: Number | None
    epoch_ms: Number | None
    lr: Number | None
    num_batches: int
    num_samples: int
    capacity_efficiency: Number | None
    eval: dict[str, Number]
    scalars: dict[str, Number]
    ranks: list[EpochRankPublic]


class EventPublic(Public):
    """Something that happened."""

    seq: int
    attempt: int
    kind: str
    rank: int | None
    time_s: float
    wall_time: datetime
    payload: dict[str, Plain]


class FilePublic(Public):
    """A file of a run."""

    kind: str = Field(description="state, the trained state, or log")
    size_bytes: int
    sha256: str
    created_at: datetime


class CancelAnswer(Public):
    """What became of the wish that a run end."""

    id: str
    accepted: bool = Field(description="Whether it was under way, so that somebody may hear")
    status: RunStatus


class Health(Public):
    """Whether the dashboard can do its work."""

    status: Literal["ok"] = "ok"
