"""The messages of a run's stream, as bytes: written once, sent to all who watch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dashboard.public import EpochPublic, EventPublic
from flodl_store.plain_json import nonfinite_as_text
from flodl_store.series import Changes

# Steps come by the thousand: a list of values each, with the names said once.
STEP_COLUMNS = (
    "seq",
    "rank",
    "epoch",
    "global_step",
    "time_s",
    "loss",
    "lr",
    "samples_per_s",
    "num_batches",
    "num_samples",
    "busy_ms",
)
RETRY = b"retry: 1000\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What a run recorded between two cursors.

    Attributes:
        after: The cursor before it.
        seq: The cursor after it.
        data: The message.
    """

    after: int
    seq: int
    data: bytes


def rows_message(after: int, changes: Changes) -> Rows:
    """The message of what came after ``after``; its id is where a client goes on."""
    body = {
        "after": after,
        "seq": changes.last_seq,
        "steps": {
            "columns": STEP_COLUMNS,
            "rows": [[row[column] for column in STEP_COLUMNS] for row in changes.steps],
        },
        "epochs": [EpochPublic.model_validate(row).model_dump(mode="json") for row in changes.epochs],
        "events": [EventPublic.model_validate(row).model_dump(mode="json") for row in changes.events],
        "wall_time": _latest(changes.steps, changes.events, changes.epochs),
    }
    data = f"id: {changes.last_seq}\nevent: rows\ndata: {compact_json(body)}\n\n".encode()
    return Rows(after=after, seq=changes.last_seq, data=data)


def run_message(now: datetime, run: Mapping[str, Any]) -> bytes:
    """The message of what is known of the run: all of it, or what has changed."""
    return f"event: run\ndata: {compact_json({'now': now.isoformat(), 'run': run})}\n\n".encode()


def beat_message(cursor: int) -> bytes:
    """Says that the stream lives: to proxies by the comment, to the page by the event."""
    return f": beat\nevent: beat\ndata: {cursor}\n\n".encode()


def compact_json(value: Any) -> str:
    """``value`` as JSON without spaces, what is not finite as strings."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError:  # seldom, and looking at each number first takes ten times as long
        return json.dumps(nonfinite_as_text(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _latest(*kinds: Sequence[Mapping[str, Any]]) -> str | None:
    times = [rows[-1]["wall_time"] for rows in kinds if rows]
    return max(times).isoformat() if times else None
