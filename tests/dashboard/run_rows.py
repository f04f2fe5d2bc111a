"""Rows of a run, as they are written and as a chart should show them."""

from __future__ import annotations

import math

from flodl_store.database import Database
from flodl_store.rows import NewStep
from flodl_store.series import steps
from tests.flodl_store.rows import step


def stored_points(db: Database, run_id: str) -> list[tuple[int, float, float | None]]:
    """Rank, global step and loss of every step, by rank and step; None where the loss is not finite."""
    rows = steps(db, run_id)
    return sorted(
        ((row["rank"], row["global_step"], row["loss"] if math.isfinite(row["loss"]) else None) for row in rows),
        key=lambda point: point[:2],
    )


def some_steps(first: int, last: int) -> list[NewStep]:
    """Steps ``first`` to ``last``, the latter not among them, of two ranks in turn."""
    return [step(number) for number in range(first, last)]
