"""A run's way from pending to an end."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from flodl_store.database import Database
from flodl_store.errors import RunStateError, UnknownRunError
from flodl_store.params import RunParams
from flodl_store.run_id import new_run_id
from flodl_store.run_progress import RunProgress, progress_columns
from flodl_store.run_view import UNDER_WAY, RunView, WorkerView, load_views
from flodl_store.storable import storable_text
from flodl_store.tables import Table

EndStatus = Literal["completed", "failed", "cancelled"]

_RUN = Table.metadata.tables["run"]
_WORKER = Table.metadata.tables["worker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run that is asked for. What the recipe or the engine gives is filled in by ``start_run``."""

    recipe: str
    policy: str
    seed: int
    config: Mapping[str, Any]
    id: str = field(default_factory=new_run_id)
    name: str | None = None
    backend: str | None = None
    world_size: int | None = None
    batch_size: int | None = None
    num_epochs: int | None = None
    version: str | None = None
    git_commit: str | None = None
    flow_run_id: str | None = None
    parent_run_id: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None

    @classmethod
    def of(cls, params: RunParams, **others: Any) -> "NewRun":
        """The run that ``params`` ask for; ``others`` are fields that are no parameters."""
        return cls(
            recipe=params.recipe,
            policy=params.policy,
            seed=params.seed,
            config=params.model_dump(mode="json"),
            name=params.name,
            backend=params.backend,
            world_size=None if params.devices is None else len(params.devices),
            batch_size=params.batch_size,
            num_epochs=params.epochs,
            tags=params.tags,
            **others,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """What is known of a run once its engine is set up.

    Attributes:
        total_samples: Samples that all epochs have together.
        config: Every parameter, defaults filled in.
        training_meta: How the engine was set up: plain values.
        workers: One a rank.
    """

    backend: str
    batch_size: int
    num_epochs: int
    total_samples: int
    config: Mapping[str, Any]
    training_meta: Mapping[str, Any]
    workers: tuple[WorkerView, ...]


def create_run(db: Database, new: NewRun) -> RunView:
    """Make a run that is pending.

    Raises:
        RunStateError: There is a run of that id.
        DatabaseUnreachableError: The database does not answer.
    """
    zeros = dict.fromkeys(("epoch", "num_samples", "num_batches", "num_syncs", "global_step", "last_seq"), 0)
    values = {
        **_asked_for(new),
        **zeros,
        "status": "pending",
        "attempt": 1,
        "training_meta": {},
        "eval": {},
        "created_at": db.clock(),
    }
    try:
        with db.write() as connection:
            connection.execute(insert(_RUN).values(values))
            (view,) = load_views(connection, [new.id], now=db.clock())
    except IntegrityError as error:
        raise RunStateError(f"cannot make a run {new.id}: there is one, or its parent is unknown") from error
    return view


def claim_run(db: Database, new: NewRun) -> RunView:
    """Make a run that is pending; where somebody has made it, and it is pending still, let it be what ``new`` says.

    Raises:
        RunStateError: It has started or ended.
        DatabaseUnreachableError: The database does not answer.
    """
    with db.write() as connection:
        status = connection.execute(select(_RUN.c.status).where(_RUN.c.id == new.id)).scalar()
        if status not in (None, "pending"):
            raise RunStateError(f"run {new.id} is {status} and cannot start again: start a new one")
        if status is not None:
            connection.execute(update(_RUN).where(_RUN.c.id == new.id).values(_asked_for(new)))
            (view,) = load_views(connection, [new.id], now=db.clock())
            return view
    return create_run(db, new)


def withdraw_run(db: Database, run_id: str) -> None:
    """Forget a run that never started; one that has is left as it is.

    Raises:
        DatabaseUnreachableError: The database does not answer.
    """
    with db.write() as connection:
        connection.execute(delete(_RUN).where(_RUN.c.id == run_id, _RUN.c.started_at.is_(None)))


def start_run(db: Database, run_id: str, start: RunStart) -> int:
    """Let a pending run be running.

    Args:
        db: Where it is.
        run_id: The whole id.
        start: What is known now.

    Returns:
        The attempt that begins, from 1.

    Raises:
        UnknownRunError: There is no such run.
        RunStateError: It is not pending.
        DatabaseUnreachableError: The database does not answer.
    """
    now = db.clock()
    values = {
        "status": "running",
        "started_at": now,
        "heartbeat_at": now,
        "world_size": len(start.workers),
        **{
            name: getattr(start, name)
            for name in ("backend", "batch_size", "num_epochs", "total_samples", "config", "training_meta")
        },
    }
    with db.write() as connection:
        row = connection.execute(select(_RUN.c.status, _RUN.c.attempt).where(_RUN.c.id == run_id)).one_or_none()
        if row is None:
            raise UnknownRunError(f"there is no run {run_id}")
        if row.status != "pending":
            raise RunStateError(f"run {run_id} is {row.status} and cannot start again: start a new one")
        connection.execute(update(_RUN).where(_RUN.c.id == run_id, _RUN.c.status == "pending").values(values))
        workers = [{"run_id": run_id, **asdict(worker)} for worker in start.workers]
        connection.execute(insert(_WORKER), workers)
        return int(row.attempt)


def beat(db: Database, run_id: str) -> bool:
    """Say that the run's process lives; has no effect on a run that has ended.

    Returns:
        Whether the run was asked to end.

    Raises:
        UnknownRunError: There is no such run.
        DatabaseUnreachableError: The database does not answer.
    """
    with db.write() as connection:
        connection.execute(
            update(_RUN).where(_RUN.c.id == run_id, _RUN.c.status.in_(UNDER_WAY)).values({"heartbeat_at": db.clock()})
        )
    return cancel_requested(db, run_id)


def end_run(
    db: Database,
    run_id: str,
    status: EndStatus,
    error: str | None = None,
    *,
    progress: RunProgress | None = None,
    evaluation: Mapping[str, float] | None = None,
) -> bool:
    """Let a run have ended. Of several ends the first counts.

    Args:
        db: Where it is.
        run_id: The whole id.
        status: How it ended.
        error: Why it failed, in one line.
        progress: How far it came; None leaves the figures as they are.
        evaluation: What the evaluation says of the published state.

    Returns:
        Whether this was the end that counts.

    Raises:
        UnknownRunError: There is no such run.
        DatabaseUnreachableError: The database does not answer.
    """
    now = db.clock()
    values = {
        "status": status,
        "error": None if error is None else storable_text(error),
        "ended_at": now,
        "eval": dict(evaluation or {}),
        **progress_columns(progress),
    }
    return _change_under_way(db, run_id, values)


def request_cancel(db: Database, run_id: str) -> bool:
    """Ask for the end of a run. Whoever trains it sees that within about a second.

    Returns:
        Whether it was under way, so that somebody may hear.

    Raises:
        UnknownRunError: There is no such run.
        DatabaseUnreachableError: The database does not answer.
    """
    return _change_under_way(db, run_id, {"cancel_requested_at": db.clock()})


def cancel_requested(db: Database, run_id: str) -> bool:
    """Whether somebody has asked for the run's end.

    Raises:
        UnknownRunError: There is no such run.
        DatabaseUnreachableError: The database does not answer.
    """
    with db.read() as connection:
        row = connection.execute(select(_RUN.c.cancel_requested_at).where(_RUN.c.id == run_id)).one_or_none()
    if row is None:
        raise UnknownRunError(f"there is no run {run_id}")
    return row.cancel_requested_at is not None


def _change_under_way(db: Database, run_id: str, values: Mapping[str, Any]) -> bool:
    with db.write() as connection:
        changed = connection.execute(
            update(_RUN).where(_RUN.c.id == run_id, _RUN.c.status.in_(UNDER_WAY)).values(values)
        ).rowcount
        if changed == 0 and connection.execute(select(_RUN.c.id).where(_RUN.c.id == run_id)).scalar() is None:
            raise UnknownRunError(f"there is no run {run_id}")
    return changed > 0


def _asked_for(new: NewRun) -> dict[str, Any]:
    values = {column.name: getattr(new, column.name) for column in fields(NewRun)}
    return {**values, "config": dict(new.config), "tags": list(new.tags)}
