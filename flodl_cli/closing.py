"""What ``flodl train`` says at the end."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flodl_cli import figures
from flodl_store.home import RunFolder
from flows.run_results import Trained, TrainResult


def print_closing(console: Console, result: TrainResult, trained: Trained, folder: RunFolder) -> None:
    """Print a table of what came of the run, one of its workers, and where its files are."""
    console.print(_outcome(result))
    console.print()
    console.print(_workers(trained))
    console.print()
    files = {"state": result.state_path, "log": str(folder.log_path)}
    for name, path in files.items():
        console.print(f"{name + ':':8}{path or '-'}", markup=False, highlight=False, soft_wrap=True)


def _outcome(result: TrainResult) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    rows = {
        "run": f"{result.run_id}  {result.status}",
        "recipe": f"{result.recipe}  {result.policy}, {result.backend}",
        "epochs": str(result.epochs),
        "training loss": figures.loss(result.avg_loss),
        **{f"evaluation {name}": figures.loss(value) for name, value in result.eval.items()},
        "samples": f"{result.num_samples:,} in {result.num_batches:,} batches",
        "averages": f"{result.num_syncs:,}",
        "capacity efficiency": figures.percent(result.capacity_efficiency),
        "time": figures.duration(result.wall_s),
    }
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))  # a recipe names its own figures: no markup in them
    return table


def _workers(trained: Trained) -> Table:
    table = Table("rank", "device", box=None, pad_edge=False)
    for column in ("samples", "batches", "samples/s", "share"):
        table.add_column(column, justify="right")
    totals = trained.totals
    for rank, device in enumerate(trained.devices):
        num_samples, busy_s = totals.rank_samples[rank], totals.rank_busy_ms[rank] / 1000
        table.add_row(
            str(rank),
            device,
            f"{num_samples:,}",
            f"{totals.rank_batches[rank]:,}",
            figures.short_count(num_samples / busy_s) if busy_s > 0 else "-",
            figures.percent(num_samples / totals.num_samples) if totals.num_samples else "-",
        )
    return table
