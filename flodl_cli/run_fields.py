"""A run as JSON on standard output."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from flodl_store.runs import RunView

BRIEF = (
    *("id", "name", "status", "recipe", "policy", "backend", "world_size", "batch_size", "epoch", "num_epochs"),
    *("avg_loss", "eval", "num_samples", "total_samples", "num_syncs", "capacity_efficiency", "global_step", "seed"),
    *("flow_run_id", "tags", "error", "attempt", "created_at", "started_at", "ended_at"),
)
"""What a list says of a run."""


def brief_fields(run: RunView) -> dict[str, Any]:
    """What a list says of a run; times in ISO 8601."""
    return plain({name: getattr(run, name) for name in BRIEF})


def all_fields(run: RunView) -> dict[str, Any]:
    """Everything that is known of a run; times in ISO 8601."""
    return plain(asdict(run))


def plain(fields: dict[str, Any]) -> dict[str, Any]:
    """``fields`` with text in place of times."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in fields.items()}
