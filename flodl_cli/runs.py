"""``flodl runs``."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from flodl_cli import figures
from flodl_cli.failures import CliError
from flodl_store.plain_json import dump_json

if TYPE_CHECKING:
    from flodl_store.runs import RunView

Status = Annotated[
    str | None,
    typer.Option(help="Only runs that are pending, running, completed, failed, cancelled or lost."),
]
Search = Annotated[str | None, typer.Option(help="Only runs with this text in name, recipe, notes, id or tags.")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="The most that are listed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON list on standard output.")]

WIDE = 160


def runs(status: Status = None, search: Search = None, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List runs, newest first."""
    from flodl_cli.run_fields import brief_fields  # the database's libraries take a while to import
    from flodl_store.database import open_database
    from flodl_store.runs import STATUSES, list_runs

    wanted = next((known for known in STATUSES if known == status), None)
    if status is not None and wanted is None:
        raise CliError(f"--status must be one of {', '.join(STATUSES)}, not {status!r}")
    with open_database() as db:
        page = list_runs(db, status=wanted, search=search, limit=limit)
    if as_json:
        print(dump_json([brief_fields(run) for run in page.items]))
        return
    if not page.items:
        print("no runs" if status or search else "no runs yet: flodl train digits makes one")
        return
    console = Console()
    if not console.is_terminal:
        console.width = WIDE  # a pipe has no width: nothing is cut short
    console.print(_table(page.items))
    if page.next is not None:
        print(f"and more: --limit lists them, {limit} by default")


def _table(found: "tuple[RunView, ...]") -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("run", no_wrap=True, min_width=26)
    for column in ("name", "status", "recipe", "how"):
        table.add_column(column)
    for column in ("epoch", "loss", "efficiency"):
        table.add_column(column, justify="right")
    table.add_column("created (UTC)", no_wrap=True)
    for run in found:
        table.add_row(
            run.id,
            run.name or "-",
            run.status,
            run.recipe,
            run.policy if run.backend is None else f"{run.policy}, {run.backend}",
            f"{run.epoch}/{run.num_epochs or '?'}",
            figures.loss(run.avg_loss),
            "-" if run.capacity_efficiency is None else figures.percent(run.capacity_efficiency),
            f"{run.created_at:%Y-%m-%d %H:%M:%S}",
        )
    return table
