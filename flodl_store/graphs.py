"""Pictures of models' graphs, shared by all runs of the same model."""

from dataclasses import dataclass

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from flodl_store.database import Database
from flodl_store.errors import UnknownRunError
from flodl_store.tables import Table

_GRAPH = Table.metadata.tables["graph"]
_RUN = Table.metadata.tables["run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    """A model's graph.

    Attributes:
        hash: SHA-256 of what the graph is, not of the picture.
        label: The model in a few words.
        svg: The picture.
    """

    hash: str
    label: str
    svg: str


def save_graph(db: Database, hash: str, label: str, svg: str) -> None:  # noqa: A002 - the column's name
    """Keep a graph; one of that hash that is there already is left as it is.

    Raises:
        DatabaseUnreachableError: The database does not answer.
    """
    if get_graph(db, hash) is not None:
        return
    try:
        with db.write() as connection:
            connection.execute(insert(_GRAPH).values(hash=hash, label=label, svg=svg))
    except IntegrityError:  # another run of the model was quicker
        return


def get_graph(db: Database, hash: str) -> GraphView | None:  # noqa: A002 - the column's name
    """The graph of that hash, or None.

    Raises:
        DatabaseUnreachableError: The database does not answer.
    """
    with db.read() as connection:
        row = connection.execute(select(_GRAPH).where(_GRAPH.c.hash == hash)).mappings().one_or_none()
    return None if row is None else GraphView(**row)


def attach_graph(db: Database, run_id: str, graph_hash: str) -> None:
    """Say which graph a run's model has; it must have been saved.

    Raises:
        UnknownRunError: There is no such run.
        DatabaseUnreachableError: The database does not answer.
    """
    with db.write() as connection:
        if connection.execute(update(_RUN).where(_RUN.c.id == run_id).values(graph_hash=graph_hash)).rowcount == 0:
            raise UnknownRunError(f"there is no run {run_id}")
