"""What a run recorded over HTTP: steps, epochs and events, in the order of ``seq``."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query

from dashboard.dependencies import DatabaseDep, RunDep
from dashboard.problems import PROBLEM_RESPONSE
from dashboard.public import EpochPublic, EventPublic, Listing, Public, StepPublic
from flodl_store.series import epochs, events, steps

router = APIRouter(
    prefix="/api/runs/{run_id}", tags=["series"], responses={404: PROBLEM_RESPONSE, 503: PROBLEM_RESPONSE}
)

MOST_ROWS = 5000
Row = TypeVar("Row", bound=Public)
After = Annotated[int, Query(ge=0, alias="cursor", description="seq after which to go on: next of the part before")]
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS)]


@router.get("/steps")
def read_steps(database: DatabaseDep, run: RunDep, after: After = 0, limit: Limit = MOST_ROWS) -> Listing[StepPublic]:
    """Stretches of batches of all ranks."""
    return _listing(StepPublic.model_validate, steps(database, run.id, after=after, limit=limit), limit)


@router.get("/epochs")
def read_epochs(database: DatabaseDep, run: RunDep, after: After = 0, limit: Limit = 500) -> Listing[EpochPublic]:
    """Epochs that have ended."""
    return _listing(EpochPublic.model_validate, epochs(database, run.id, after=after, limit=limit), limit)


@router.get("/events")
def read_events(database: DatabaseDep, run: RunDep, after: After = 0, limit: Limit = 500) -> Listing[EventPublic]:
    """What happened."""
    return _listing(EventPublic.model_validate, events(database, run.id, after=after, limit=limit), limit)


def _listing(shown: Callable[[Any], Row], rows: Sequence[dict[str, Any]], limit: int) -> Listing[Row]:
    following = str(rows[-1]["seq"]) if len(rows) == limit else None
    return Listing(items=[shown(row) for row in rows], next=following)
