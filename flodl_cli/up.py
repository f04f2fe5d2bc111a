"""``flodl up``: everything that a team needs on one machine, until Ctrl-C."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flodl_cli.failures import SIGNAL_BASE, CliError
from flodl_cli.ports import LOOPBACK, choose_port
from flodl_cli.stack import Plan, Stack, Tell, running_services
from flodl_cli.stop_signals import StopSignals
from flodl_cli.up_lock import Addresses, UpLock
from flodl_store.database import open_database
from flodl_store.home import make_home

DASHBOARD_PORT, PREFECT_PORT = 8000, 4200
LOOK_EVERY_S = 0.2

Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Of the dashboard; by default 8000 or the next free.")]
PrefectPort = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Of Prefect's server; by default 4200 or the next free.")
]


def up(port: Port = None, prefect_port: PrefectPort = None) -> int:
    """Start Prefect, the flow ddp-train and the dashboard, as far as they are not there; Ctrl-C stops them."""
    home = make_home()
    with StopSignals() as signals, UpLock(home / "up.lock") as lock:
        if not lock.take():
            raise CliError(_already(lock.read()))
        plan = make_plan(home, port=port, prefect_port=prefect_port)
        with services_up(plan, lock) as stack:
            print(f"export PREFECT_API_URL={plan.prefect_api}", flush=True)
            signals.defer()
            wait(stack, until=signals.is_requested)
    return SIGNAL_BASE + (signals.requested or 0)


def make_plan(home: Path, *, port: int | None, prefect_port: int | None) -> Plan:
    """Find out what is missing, and ports for it.

    Raises:
        CliError: A port is taken.
        StoreError: The database cannot be used.
    """
    open_database().close()  # what is wrong with it is said before anything is started
    asked_api = os.environ.get("PREFECT_API_URL")
    if asked_api and prefect_port is not None:
        raise CliError("PREFECT_API_URL names a Prefect that runs already: leave out --prefect-port, or unset it")
    chosen = None if asked_api else choose_port(PREFECT_PORT, asked=prefect_port, what="Prefect with --prefect-port")
    return Plan(
        home=home,
        started_in=Path.cwd(),
        dashboard_port=choose_port(DASHBOARD_PORT, asked=port, what="the dashboard with --port"),
        prefect_port=chosen,
        prefect_api=asked_api or f"http://{LOOPBACK}:{chosen}/api",
    )


@contextmanager
def services_up(plan: Plan, lock: UpLock) -> Iterator[Stack]:
    """Start what ``plan`` says, print where it answers, and end it when the block is left."""
    with (
        _progress() as tell,
        running_services(
            plan, tell=tell, on_dashboard=lambda: print(f"Dashboard: {plan.dashboard_url}", flush=True)
        ) as stack,
    ):
        print(f"Prefect API: {plan.prefect_api}", flush=True)
        lock.publish(Addresses(pid=os.getpid(), dashboard=plan.dashboard_url, prefect_api=plan.prefect_api))
        tell(None)
        yield stack


@contextmanager
def _progress() -> Iterator[Tell]:
    """Shows on standard error what is being waited for: at the foot of a terminal, as a line elsewhere."""
    console = Console(stderr=True)
    with console.status("starting", refresh_per_second=4) as status:

        def tell(what: str | None) -> None:
            if what is None:
                status.stop()  # a spinner that turns for hours takes time from training
            elif console.is_terminal:
                status.update(what)
                status.start()
            else:
                print(f"flodl: {what}", file=sys.stderr, flush=True)

        yield tell


def wait(stack: Stack | None, *, until: Callable[[], bool]) -> None:
    """Wait until ``until()`` is true; see meanwhile that the services run.

    Raises:
        CliError: One of them has ended.
    """
    while not until():
        if stack is not None:
            stack.check()
        time.sleep(LOOK_EVERY_S)


def _already(addresses: Addresses | None) -> str:
    if addresses is None:
        return "another flodl up is starting in this home: wait for it, or set FLODL_HOME to another folder"
    return (
        f"flodl up runs already in this home (process {addresses.pid}): "
        f"Dashboard: {addresses.dashboard}, Prefect API: {addresses.prefect_api}"
    )
