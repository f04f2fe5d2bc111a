"""``run.json``: what a run was asked to do and what came of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from flodl_store.home import RunFolder, write_atomic
from flodl_store.params import RunParams
from flodl_store.plain_json import dump_json


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run, as ``run.json`` holds it.

    Attributes:
        run_id: The run's name.
        status: ``running``, ``completed``, ``failed`` or ``cancelled``.
        version: Version of flodl that trained.
        created_at: When the run began, UTC, ISO 8601.
        ended_at: When it ended, or None.
        params: Every parameter, defaults filled in.
        result: What ``flodl train --json`` prints, or None while there is none.
        error: Why it failed, in one line, or None.
    """

    run_id: str
    status: str
    version: str
    created_at: str
    ended_at: str | None
    params: Mapping[str, Any]
    result: Mapping[str, Any] | None
    error: str | None


def new_record(run_id: str, params: RunParams, *, version: str) -> RunRecord:
    """The record of a run that begins now."""
    return RunRecord(
        run_id=run_id,
        status="running",
        version=version,
        created_at=utc_now(),
        ended_at=None,
        params=params.model_dump(mode="json"),
        result=None,
        error=None,
    )


def write_record(folder: RunFolder, record: RunRecord) -> None:
    """Put ``record`` into the run's folder, whole or not at all.

    Raises:
        HomeError: The file cannot be written.
    """
    write_atomic(folder.record_path, (dump_json(asdict(record), indent=2) + "\n").encode())


def utc_now() -> str:
    """The time, UTC, ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
