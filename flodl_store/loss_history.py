"""The loss of many runs by epoch, in one query: what a list draws small beside each run."""

from collections.abc import Sequence

from sqlalchemy import select

from flodl_store.database import Database
from flodl_store.nonfinite import put_back
from flodl_store.tables import Table

_EPOCH = Table.metadata.tables["epoch"]


def losses_by_epoch(db: Database, run_ids: Sequence[str], *, most: int = 60) -> dict[str, list[float | None]]:
    """Mean training loss of each run's epochs, in their order.

    Args:
        db: Where they are.
        run_ids: Whole ids.
        most: Epochs of a run that are kept, evenly spaced, the first and the last among them; at least 2.

    Returns:
        An entry for each of ``run_ids``; a loss may be NaN, or None where none was recorded.

    Raises:
        DatabaseUnreachableError: The database does not answer.
    """
    query = (
        select(_EPOCH.c.run_id, _EPOCH.c.epoch, _EPOCH.c.avg_loss, _EPOCH.c.nonfinite)
        .where(_EPOCH.c.run_id.in_(run_ids))
        .order_by(_EPOCH.c.run_id, _EPOCH.c.seq)
    )
    found: dict[str, dict[int, float | None]] = {run_id: {} for run_id in run_ids}
    with db.read() as connection:
        for row in connection.execute(query).mappings():
            # A later attempt at an epoch takes the place of an earlier one.
            found[row["run_id"]][row["epoch"]] = put_back(dict(row))["avg_loss"]
    return {run_id: _spaced([losses[epoch] for epoch in sorted(losses)], most) for run_id, losses in found.items()}


def _spaced(values: list[float | None], most: int) -> list[float | None]:
    if len(values) <= most:
        return values
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]
