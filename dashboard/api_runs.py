"""Runs over HTTP: the list, one of them, its workers, its end."""

from typing import Annotated

from fastapi import APIRouter, Query

from dashboard.dependencies import DatabaseDep, RunDep
from dashboard.problems import PROBLEM_RESPONSE
from dashboard.public import CancelAnswer, Listing, RunInList, RunPublic, WorkerPublic
from flodl_store.database import Database
from flodl_store.loss_history import losses_by_epoch
from flodl_store.runs import RunStatus, get_run, list_runs, request_cancel

router = APIRouter(prefix="/api/runs", tags=["runs"], responses={404: PROBLEM_RESPONSE, 503: PROBLEM_RESPONSE})

PAGE_SIZE = 50


@router.get("", responses={400: PROBLEM_RESPONSE})
def read_runs(
    database: DatabaseDep,
    status: RunStatus | None = None,
    search: Annotated[str | None, Query(max_length=200, description="Text in name, recipe, notes, id or tags")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = PAGE_SIZE,
    cursor: Annotated[str | None, Query(description="next of the part before")] = None,
) -> Listing[RunInList]:
    """Runs, newest first."""
    return page_of_runs(database, status=status, search=search, limit=limit, cursor=cursor)


@router.get("/{run_id}")
def read_run(run: RunDep) -> RunPublic:
    """One run."""
    return RunPublic.model_validate(run)


@router.get("/{run_id}/workers")
def read_workers(run: RunDep) -> Listing[WorkerPublic]:
    """The run's ranks and their devices."""
    return Listing(items=[WorkerPublic.model_validate(worker) for worker in run.workers], next=None)


@router.post("/{run_id}/cancel", status_code=202)
def cancel_run(database: DatabaseDep, run: RunDep) -> CancelAnswer:
    """Ask for the run's end. Its process saves what was trained and marks it cancelled, within some seconds."""
    accepted = request_cancel(database, run.id)
    return CancelAnswer(id=run.id, accepted=accepted, status=get_run(database, run.id).status)


def page_of_runs(
    database: Database, *, status: RunStatus | None, search: str | None, limit: int, cursor: str | None
) -> Listing[RunInList]:
    """A part of the list of runs, each with its curve.

    Raises:
        CursorError: ``cursor`` is none.
        DatabaseUnreachableError: The database does not answer.
    """
    page = list_runs(database, status=status, search=search, limit=limit, cursor=cursor)
    losses = losses_by_epoch(database, [run.id for run in page.items])
    items = [
        RunInList(**RunPublic.model_validate(run).model_dump(), loss_by_epoch=losses[run.id]) for run in page.items
    ]
    return Listing(items=items, next=page.next)
