"""What ``flodl simulate`` shows: a bar while it works, then tables or one JSON object."""

import time
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from flodl_cli import figures
from flodl_core.policies import ApplyPolicy
from flodl_core.simulation import RankReport, SimulationReport, SimulationSpec
from flodl_core.simulation import simulate as simulate_run
from flodl_store.plain_json import dump_json

MOST_ROWS = 16
"""Ranks in the table; JSON has them all."""
MOST_LOST = 8


def simulate_with_progress(spec: SimulationSpec) -> tuple[SimulationReport, float]:
    """The report, and the seconds of real time that it took; with a bar on standard error where that is a terminal."""
    columns = (TextColumn("simulating"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    start_s = time.perf_counter()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=spec.epoch_size * spec.num_epochs)
        report = simulate_run(spec, on_progress=lambda num_samples: progress.update(task, completed=num_samples))
    return report, time.perf_counter() - start_s


def print_json(spec: SimulationSpec, report: SimulationReport, real_s: float) -> None:
    """One object on standard output; docs/simulate.md says what is in it."""
    fields = asdict(report)
    shares = [rank["batch_share"] for rank in fields["ranks"]]
    speed_up = report.speed_up if _is_whole(spec, report) else None
    print(dump_json({**fields, "batch_share": shares, "speed_up": speed_up, "seed": spec.seed, "real_s": real_s}))


def _is_whole(spec: SimulationSpec, report: SimulationReport) -> bool:
    """Whether all epochs were trained; else lockstep, which trains them all, is no measure of the run."""
    return report.num_samples == spec.num_epochs * spec.epoch_size


def print_tables(spec: SimulationSpec, backend: str, report: SimulationReport, real_s: float) -> None:
    """The run as a whole, then rank by rank."""
    console = Console()
    console.print(_outcome(spec, backend, report, real_s))
    console.print()
    console.print(_ranks(spec, report.ranks))
    if spec.world_size > MOST_ROWS:
        console.print(f"and {spec.world_size - MOST_ROWS:,} more: --json has them all", highlight=False)


def _outcome(spec: SimulationSpec, backend: str, report: SimulationReport, real_s: float) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    policy = spec.options.policy
    is_paced = spec.world_size > 1 and policy is not ApplyPolicy.SYNC
    rows = {
        "run": f"{report.status}  {policy}, {backend}",
        "lost": _lost(report.lost_ranks),
        "samples": f"{report.num_samples:,} in {report.global_step:,} batches of up to {spec.batch_size:,}",
        "time": f"{_time(report.wall_s)}, {_throughput(report)}",
        "in lockstep": f"{_time(report.lockstep_wall_s)}: this run is {report.speed_up:.2f} times as fast",
        "capacity efficiency": figures.percent(report.capacity_efficiency),
        "by epoch": _by_epoch(report.epoch_efficiency),
        "averages": f"{report.num_syncs:,}" + (f", anchor {report.anchor}" if is_paced else ""),
        "simulated in": f"{_time(real_s)}: {report.num_messages:,} messages",
    }
    if not _is_whole(spec, report):
        del rows["in lockstep"]
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    return table


def _lost(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return ""
    more = len(ranks) - MOST_LOST
    shown = ", ".join(str(rank) for rank in ranks[:MOST_LOST])
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}" + (f" and {more:,} more" if more > 0 else "")


def _time(seconds: float) -> str:
    """With milliseconds where ``figures.duration`` would round them away."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.95 else figures.duration(seconds)


def _throughput(report: SimulationReport) -> str:
    return figures.rate(report.num_samples / report.wall_s) if report.wall_s > 0 else "-"


def _by_epoch(efficiencies: tuple[float, ...]) -> str:
    more = len(efficiencies) - MOST_ROWS
    # an epoch that ended with the same average as the one before took no time of its own
    shown = " ".join(figures.percent(efficiency) if efficiency > 0 else "-" for efficiency in efficiencies[:MOST_ROWS])
    return f"{shown} and {more:,} more" if more > 0 else shown


def _batch_ms(spec: SimulationSpec, rank: int) -> str:
    """What a batch takes at first and, where the rank's speed changes, from then on."""
    changes = sorted((slow for slow in spec.slow_downs if slow.rank == rank), key=lambda slow: slow.epoch)
    first_ms = spec.batch_ms[rank]
    return ", ".join(f"{ms:.3g}" for ms in (first_ms, *(first_ms / slow.factor for slow in changes)))


def _ranks(spec: SimulationSpec, ranks: tuple[RankReport, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("rank", "ms/batch", "batches", "share", "training", "averaging", "waiting", "without data"):
        table.add_column(column, justify="right")
    for rank, row in enumerate(ranks[:MOST_ROWS]):
        total_s = row.train_s + row.average_s + row.wait_s + row.no_data_s or 1.0
        times = (row.train_s, row.average_s, row.wait_s, row.no_data_s)
        table.add_row(
            str(rank),
            _batch_ms(spec, rank),
            f"{row.num_batches:,}",
            figures.percent(row.batch_share),
            *(figures.percent(time_s / total_s) for time_s in times),
        )
    return table
