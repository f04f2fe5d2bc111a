"""``flodl show``."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flodl_cli import figures
from flodl_store.plain_json import dump_json

if TYPE_CHECKING:
    from flodl_store.artifacts import ArtifactView
    from flodl_store.runs import RunView

RunName = Annotated[str, typer.Argument(metavar="RUN", help="Its id, the beginning of it, or latest.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def show(run: RunName, as_json: AsJson = False) -> None:
    """Say what is known of a run."""
    from flodl_cli.run_fields import all_fields, plain  # the database's libraries take a while to import
    from flodl_store.artifacts import list_artifacts
    from flodl_store.database import open_database
    from flodl_store.runs import get_run
    from flodl_store.series import epochs

    with open_database() as db:
        found = get_run(db, run)
        ended, files = epochs(db, found.id), list_artifacts(db, found.id)
    if as_json:
        artifacts = [{**plain(asdict(file)), "file": str(file.file)} for file in files]
        print(dump_json({**all_fields(found), "epochs": [plain(row) for row in ended], "artifacts": artifacts}))
        return
    console = Console()
    console.print(_outcome(found))
    for table in (_workers(found), _epochs(ended)):
        if table.row_count > 0:
            console.print()
            console.print(table)
    _print_files(console, files)


def _outcome(run: "RunView") -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    rows = {
        "run": f"{run.id}  {run.status}",
        "name": run.name,
        "tags": " ".join(run.tags) or None,
        "recipe": f"{run.recipe}  {run.policy}, {run.backend or 'backend not known yet'}",
        "epochs": f"{run.epoch} of {run.num_epochs or '?'}",
        "training loss": figures.loss(run.avg_loss),
        **{f"evaluation {name}": figures.loss(value) for name, value in run.eval.items()},
        "samples": f"{run.num_samples:,} in {run.num_batches:,} batches",
        "averages": f"{run.num_syncs:,}",
        "capacity efficiency": None if run.capacity_efficiency is None else figures.percent(run.capacity_efficiency),
        "time": None if run.wall_s is None else figures.duration(run.wall_s),
        "created": f"{run.created_at:%Y-%m-%d %H:%M:%S} UTC",
        "commit": run.git_commit,
        "flow run": run.flow_run_id,
        "error": run.error,
    }
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, value)
    return table


def _workers(run: "RunView") -> Table:
    table = Table("rank", "device", "what it is", box=None, pad_edge=False)
    for worker in run.workers:
        table.add_row(str(worker.rank), worker.device, worker.device_name or "-")
    return table


def _epochs(rows: Sequence[dict[str, Any]]) -> Table:
    names = sorted({name for row in rows for name in row["eval"]})
    table = Table(box=None, pad_edge=False)
    for column in ("epoch", "loss", *(f"eval {name}" for name in names), "samples", "efficiency", "time"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row["epoch"] + 1),
            figures.loss(row["avg_loss"]),
            *(figures.loss(row["eval"].get(name)) for name in names),
            f"{row['num_samples']:,}",
            figures.percent(row["capacity_efficiency"]),
            figures.duration(row["epoch_ms"] / 1000),
        )
    return table


def _print_files(console: Console, files: "Sequence[ArtifactView]") -> None:
    if files:
        console.print()
    for file in files:
        console.print(f"{file.kind + ':':8}{file.file}", markup=False, highlight=False, soft_wrap=True)
