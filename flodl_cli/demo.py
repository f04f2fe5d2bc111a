"""``flodl demo``: a real run on two unlike workers, and its page."""

import os
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from flodl_cli.failures import RUN_FAILED, SIGNAL_BASE, CliError
from flodl_cli.stack import Stack
from flodl_cli.stop_signals import StopSignals
from flodl_cli.up import Port, PrefectPort, make_plan, services_up, wait
from flodl_cli.up_lock import UpLock
from flodl_store.database import Database, open_database
from flodl_store.home import make_home
from flodl_store.params import RunParams
from flodl_store.runs import NewRun, create_run, end_run, get_run, request_cancel

EPOCHS = 200
"""A minute or more on a machine with two slow cores."""
UNDER_WAY = ("pending", "running")

Epochs = Annotated[int, typer.Option(min=1, help="Times that every sample is trained.")]
NoOpen = Annotated[bool, typer.Option("--no-open", help="Open no browser.")]
ExitWhenDone = Annotated[bool, typer.Option("--exit-when-done", help="Stop everything once the run has ended.")]


def demo(
    no_open: NoOpen = False,
    port: Port = None,
    prefect_port: PrefectPort = None,
    epochs: Epochs = EPOCHS,
    exit_when_done: ExitWhenDone = False,
) -> int:
    """Train a small model on two unlike CPU workers and show it live; Ctrl-C stops everything."""
    home = make_home()
    params = RunParams(recipe="digits", devices=("cpu", "cpu@2.5"), epochs=epochs, name="Demo", tags=("demo",))
    with StopSignals() as signals, open_database() as db:
        with _services(home, port, prefect_port) as (stack, dashboard), _started_run(db, params) as run_id:
            url = f"{dashboard}/runs/{run_id}"
            print(f"Run: {url}", flush=True)
            if not no_open:
                webbrowser.open(url)
            signals.defer()
            wait(stack, until=lambda: signals.is_requested() or (exit_when_done and _has_ended(db, run_id)))
        return SIGNAL_BASE + signals.requested if signals.requested else _outcome(db, run_id)


@contextmanager
def _services(home: Path, port: int | None, prefect_port: int | None) -> Iterator[tuple[Stack | None, str]]:
    """Those of a ``flodl up`` that runs in this home, else our own until the block is left; and the dashboard's URL."""
    with UpLock(home / "up.lock") as lock:
        if lock.take():
            plan = make_plan(home, port=port, prefect_port=prefect_port)
            with services_up(plan, lock) as stack:
                yield stack, plan.dashboard_url
            return
        others = lock.read()
        if others is None:
            raise CliError("flodl up is starting in this home: wait for it, or set FLODL_HOME to another folder")
        os.environ |= {"PREFECT_API_URL": others.prefect_api, "DO_NOT_TRACK": "1"}
        yield None, others.dashboard


@contextmanager
def _started_run(db: Database, params: RunParams) -> Iterator[str]:
    """A run that has been asked for, and that is to end when the block is left."""
    from flodl_cli.prefect_api import open_api  # Prefect takes a while to import

    run_id = create_run(db, NewRun.of(params)).id
    flow_run_id: UUID | None = None
    with open_api() as api:
        try:
            flow_run_id = api.start_run({**params.model_dump(mode="json"), "run_id": run_id})
            yield run_id
        finally:
            if flow_run_id is None or api.withdraw(flow_run_id):
                end_run(db, run_id, "cancelled")
            else:
                request_cancel(db, run_id)


def _has_ended(db: Database, run_id: str) -> bool:
    return get_run(db, run_id).status not in UNDER_WAY


def _outcome(db: Database, run_id: str) -> int:
    run = get_run(db, run_id)
    if run.status != "completed":
        raise CliError(f"the run is {run.status}: {run.error or 'its page says more'}", exit_code=RUN_FAILED)
    return 0
