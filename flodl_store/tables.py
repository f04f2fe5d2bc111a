"""The tables. What a migration makes of a database is compared with them in a test.

Every metric column is nullable: a number that is not finite is stored as NULL and named in ``nonfinite``, a JSON object
of column to ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``. ``seq`` is one counter per run over steps, epochs and events,
given at commit, without gaps. Times are UTC; ``time_s`` counts from the start of the attempt.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKeyConstraint, MetaData
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel

from flodl_store.column_types import Json, UtcTime

# Names that do not depend on the database, so that a later migration can change what they name.
NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

ALL_RANKS = -1
"""``epoch_scalar.rank`` of a mean over all ranks."""


class Table(SQLModel, registry=registry(metadata=MetaData(naming_convention=NAMING))):
    """Root of the tables, apart from those of anybody else who uses SQLModel in this process."""


class Graph(Table, table=True):
    """A model's graph, shared by all runs of the model."""

    hash: str = Field(primary_key=True)
    label: str
    svg: str


class Run(Table, table=True):
    """One run: what it was asked to do, how far it is, how it ended."""

    id: str = Field(primary_key=True, max_length=26)
    name: str | None = None
    status: str = Field(index=True)
    recipe: str
    policy: str
    backend: str | None = None
    world_size: int | None = None
    batch_size: int | None = None
    num_epochs: int | None = None
    total_samples: int | None = Field(default=None, sa_type=BigInteger)
    seed: int = Field(sa_type=BigInteger)
    config: dict[str, Any] = Field(default_factory=dict, sa_type=Json)
    training_meta: dict[str, Any] = Field(default_factory=dict, sa_type=Json)
    graph_hash: str | None = Field(default=None, foreign_key="graph.hash")
    version: str | None = None
    git_commit: str | None = None
    flow_run_id: str | None = Field(default=None, index=True)
    parent_run_id: str | None = Field(default=None, foreign_key="run.id", ondelete="SET NULL")
    tags: list[str] = Field(default_factory=list, sa_type=Json)
    notes: str | None = None
    error: str | None = None
    attempt: int = 1
    last_seq: int = Field(default=0, sa_type=BigInteger)
    epoch: int = 0
    avg_loss: float | None = None
    num_samples: int = Field(default=0, sa_type=BigInteger)
    num_batches: int = Field(default=0, sa_type=BigInteger)
    num_syncs: int = Field(default=0, sa_type=BigInteger)
    capacity_efficiency: float | None = None
    anchor: int | None = None
    global_step: int = Field(default=0, sa_type=BigInteger)
    wall_s: float | None = None
    eval: dict[str, Any] = Field(default_factory=dict, sa_type=Json)
    nonfinite: dict[str, Any] | None = Field(default=None, sa_type=Json)
    created_at: datetime = Field(sa_type=UtcTime)
    started_at: datetime | None = Field(default=None, sa_type=UtcTime)
    heartbeat_at: datetime | None = Field(default=None, sa_type=UtcTime)
    ended_at: datetime | None = Field(default=None, sa_type=UtcTime)
    cancel_requested_at: datetime | None = Field(default=None, sa_type=UtcTime)


class Worker(Table, table=True):
    """One rank of a run and its device."""

    run_id: str = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE", max_length=26)
    rank: int = Field(primary_key=True)
    device: str
    device_name: str | None = None
    memory_bytes: int | None = Field(default=None, sa_type=BigInteger)
    slowdown: float = 1.0


class Epoch(Table, table=True):
    """An epoch that has ended."""

    __table_args__ = ({"sqlite_with_rowid": False},)

    run_id: str = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE", max_length=26)
    seq: int = Field(primary_key=True, sa_type=BigInteger)
    attempt: int
    epoch: int
    time_s: float
    wall_time: datetime = Field(sa_type=UtcTime)
    avg_loss: float | None = None
    epoch_ms: float | None = None
    lr: float | None = None
    num_batches: int
    num_samples: int = Field(sa_type=BigInteger)
    capacity_efficiency: float | None = None
    eval: dict[str, Any] = Field(default_factory=dict, sa_type=Json)
    nonfinite: dict[str, Any] | None = Field(default=None, sa_type=Json)


class EpochRank(Table, table=True):
    """What one rank did in an epoch."""

    __tablename__ = "epoch_rank"
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "seq"], ["epoch.run_id", "epoch.seq"], ondelete="CASCADE"),
        {"sqlite_with_rowid": False},
    )

    run_id: str = Field(primary_key=True, max_length=26)
    seq: int = Field(primary_key=True, sa_type=BigInteger)
    rank: int = Field(primary_key=True)
    device: str
    loss: float | None = None
    samples_per_s: float | None = None
    batch_share: float | None = None
    busy_ms: float | None = None
    nonfinite: dict[str, Any] | None = Field(default=None, sa_type=Json)


class EpochScalar(Table, table=True):
    """A scalar that the training step recorded, its mean over an epoch: of one rank, or of all (``ALL_RANKS``)."""

    __tablename__ = "epoch_scalar"
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "seq"], ["epoch.run_id", "epoch.seq"], ondelete="CASCADE"),
        {"sqlite_with_rowid": False},
    )

    run_id: str = Field(primary_key=True, max_length=26)
    seq: int = Field(primary_key=True, sa_type=BigInteger)
    name: str = Field(primary_key=True)
    rank: int = Field(primary_key=True)
    value: float | None = None
    nonfinite: dict[str, Any] | None = Field(default=None, sa_type=Json)


class Step(Table, table=True):
    """A stretch of one rank's batches: at most five rows a second for each rank."""

    __table_args__ = ({"sqlite_with_rowid": False},)

    run_id: str = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE", max_length=26)
    seq: int = Field(primary_key=True, sa_type=BigInteger)
    attempt: int
    rank: int
    epoch: int
    global_step: int = Field(sa_type=BigInteger)
    time_s: float
    wall_time: datetime = Field(sa_type=UtcTime)
    loss: float | None = None
    lr: float | None = None
    samples_per_s: float | None = None
    num_batches: int
    num_samples: int = Field(sa_type=BigInteger)
    busy_ms: float | None = None
    nonfinite: dict[str, Any] | None = Field(default=None, sa_type=Json)


class EventRow(Table, table=True):
    """Something that happened in a run."""

    __tablename__ = "event"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run_id: str = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE", max_length=26)
    seq: int = Field(primary_key=True, sa_type=BigInteger)
    attempt: int
    kind: str
    rank: int | None = None
    time_s: float
    wall_time: datetime = Field(sa_type=UtcTime)
    payload: dict[str, Any] = Field(default_factory=dict, sa_type=Json)


class ResourceSample(Table, table=True):
    """How busy a device was at one moment."""

    __tablename__ = "resource_sample"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run_id: str = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE", max_length=26)
    seq: int = Field(primary_key=True, sa_type=BigInteger)
    attempt: int
    device: str
    time_s: float
    wall_time: datetime = Field(sa_type=UtcTime)
    utilization: float | None = None
    memory_bytes: int | None = Field(default=None, sa_type=BigInteger)


class Checkpoint(Table, table=True):
    """A state from which a run can go on."""

    run_id: str = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE", max_length=26)
    version: int = Field(primary_key=True)
    attempt: int
    epoch: int
    global_step: int = Field(sa_type=BigInteger)
    last_seq: int = Field(sa_type=BigInteger)
    path: str
    size_bytes: int = Field(sa_type=BigInteger)
    sha256: str = Field(max_length=64)
    created_at: datetime = Field(sa_type=UtcTime)


class Artifact(Table, table=True):
    """A file that a run made, by its path relative to the folder of all artifacts."""

    run_id: str = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE", max_length=26)
    path: str = Field(primary_key=True)
    kind: str
    size_bytes: int = Field(sa_type=BigInteger)
    sha256: str = Field(max_length=64)
    created_at: datetime = Field(sa_type=UtcTime)
