"""Runs: finding them. How one begins and ends is in ``run_life``, and can be imported from here too."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, String, cast, or_, select

from flodl_store.database import Database
from flodl_store.errors import CursorError, UnknownRunError
from flodl_store.run_life import (
    EndStatus,
    NewRun,
    RunStart,
    beat,
    cancel_requested,
    claim_run,
    create_run,
    end_run,
    request_cancel,
    start_run,
    withdraw_run,
)
from flodl_store.run_progress import RunProgress
from flodl_store.run_view import LOST_AFTER_S, STATUSES, RunStatus, RunView, WorkerView, load_views, status_is
from flodl_store.tables import Table

__all__ = [
    "LATEST",
    "LOST_AFTER_S",
    "STATUSES",
    "EndStatus",
    "NewRun",
    "Page",
    "RunProgress",
    "RunStart",
    "RunStatus",
    "RunView",
    "WorkerView",
    "beat",
    "cancel_requested",
    "claim_run",
    "create_run",
    "end_run",
    "get_run",
    "list_runs",
    "request_cancel",
    "resolve_run_id",
    "start_run",
    "withdraw_run",
]

T = TypeVar("T")
LATEST = "latest"
"""Stands for the newest run."""

_RUN = Table.metadata.tables["run"]
_ALPHABET = "0-9A-HJKMNP-TV-Z"  # Crockford's base 32
_ID = re.compile(rf"[{_ALPHABET}]{{26}}")
_PREFIX = re.compile(rf"[{_ALPHABET}]{{1,26}}")
_SEARCHED = (_RUN.c.name, _RUN.c.recipe, _RUN.c.notes, _RUN.c.id, cast(_RUN.c.tags, String))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A part of a list.

    Attributes:
        items: The part.
        next: What to pass as ``cursor`` for the part after it, or None at the end.
    """

    items: tuple[T, ...]
    next: str | None


def get_run(db: Database, run_id: str) -> RunView:
    """The run that ``run_id`` means: see ``resolve_run_id``.

    Raises:
        UnknownRunError: No run, or more than one, is meant.
        DatabaseUnreachableError: The database does not answer.
    """
    with db.read() as connection:
        (view,) = load_views(connection, [_resolve(connection, run_id)], now=db.clock())
    return view


def resolve_run_id(db: Database, text: str) -> str:
    """The whole id that ``text`` means: an id, a beginning that only one run has, or ``latest``.

    Raises:
        UnknownRunError: No run, or more than one, is meant.
        DatabaseUnreachableError: The database does not answer.
    """
    with db.read() as connection:
        return _resolve(connection, text)


def list_runs(
    db: Database,
    *,
    status: RunStatus | None = None,
    search: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[RunView]:
    """Runs, newest first.

    Args:
        db: Where they are.
        status: Only those shown with it.
        search: Only those with this text in name, recipe, notes, id or tags, in upper or lower case.
        limit: Runs in the part, at least 1.
        cursor: ``next`` of the part before.

    Raises:
        CursorError: ``cursor`` is none.
        DatabaseUnreachableError: The database does not answer.
    """
    now = db.clock()
    wanted: list[ColumnElement[bool]] = []
    if status is not None:
        wanted.append(status_is(status, now=now))
    if search:
        wanted.append(or_(*(column.icontains(search, autoescape=True) for column in _SEARCHED)))
    if cursor is not None:
        if not _ID.fullmatch(cursor):
            raise CursorError(f"{cursor!r} is no cursor of a list of runs")
        wanted.append(_RUN.c.id < cursor)
    query = select(_RUN.c.id).where(*wanted).order_by(_RUN.c.id.desc()).limit(limit + 1)
    with db.read() as connection:
        ids = connection.execute(query).scalars().all()
        views = load_views(connection, ids[:limit], now=now)
    return Page(items=tuple(views), next=ids[limit - 1] if len(ids) > limit else None)


def _resolve(connection: Connection, text: str) -> str:
    newest_first = select(_RUN.c.id).order_by(_RUN.c.id.desc())
    if text == LATEST:
        found: Sequence[str] = connection.execute(newest_first.limit(1)).scalars().all()
        if not found:
            raise UnknownRunError("there is no run yet")
        return found[0]
    beginning = text.upper()
    if not _PREFIX.fullmatch(beginning):
        raise UnknownRunError(f"there is no run {text!r}: an id has 26 digits and capitals; flodl runs lists them")
    found = connection.execute(newest_first.where(_RUN.c.id.startswith(beginning)).limit(3)).scalars().all()
    if not found:
        raise UnknownRunError(f"there is no run {text!r}: flodl runs lists them")
    if len(found) > 1:
        raise UnknownRunError(f"more than one run begins with {text!r}, {found[0]} and {found[1]} among them")
    return found[0]
