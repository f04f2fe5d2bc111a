"""From a Prefect flow run to the runs that it trains."""

from sqlalchemy import select

from flodl_store.database import Database
from flodl_store.run_view import UNDER_WAY
from flodl_store.tables import Table

_RUN = Table.metadata.tables["run"]


def runs_under_way(db: Database, flow_run_id: str) -> list[str]:
    """Ids of the runs of a flow run that have not ended, oldest first.

    Raises:
        DatabaseUnreachableError: The database does not answer.
    """
    query = select(_RUN.c.id).where(_RUN.c.flow_run_id == flow_run_id, _RUN.c.status.in_(UNDER_WAY)).order_by(_RUN.c.id)
    with db.read() as connection:
        return list(connection.execute(query).scalars())
