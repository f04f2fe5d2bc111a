"""For whoever supervises the dashboard: is it alive, can it do its work."""

from fastapi import APIRouter

from dashboard.dependencies import DatabaseDep
from dashboard.problems import PROBLEM_RESPONSE
from dashboard.public import Health

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def is_alive() -> Health:
    """The process answers."""
    return Health()


@router.get("/readyz", responses={503: PROBLEM_RESPONSE})
def is_ready(database: DatabaseDep) -> Health:
    """The database answers too."""
    with database.read() as connection:
        connection.exec_driver_sql("SELECT 1")
    return Health()
