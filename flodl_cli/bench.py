"""``flodl bench``: the measurements of a checkout's ``benchmarks/``, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from flodl_cli.failures import CliError

ROOT = Path(__file__).parent.parent
BENCHMARKS = {
    "peers": ("benchmarks.peers", "flodl against DistributedDataParallel and what else people use"),
    "policies": ("benchmarks.policies", "one recipe on two unlike workers, under every policy and backend"),
    "efficiency": ("benchmarks.efficiency", "what a real run makes of two unlike devices, checked from outside"),
    "engine": ("benchmarks.engine_overhead", "what the engine costs per batch beyond bare threads"),
    "averaging": ("benchmarks.averaging", "the weighted average of large replicas, in plain copies"),
    "recorder": ("benchmarks.recorder", "what recording costs the training, and rows made durable per second"),
    "timeline": ("benchmarks.timeline", "what a timeline costs the training"),
    "simulator": ("benchmarks.simulator", "what simulated runs reach, and what a message costs at 1,000 ranks"),
}
"""By name: the module, and what it measures."""


def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Which; without it they are listed.")] = None,
) -> None:
    """Measure flodl: NAME and its own options, such as --rounds, --json or --help. Needs a checkout."""
    if name in (None, "--help", "-h"):
        print("Usage: flodl bench NAME [OPTIONS OF ITS OWN]; flodl bench NAME --help explains them\n")
        _list()
        return
    if name not in BENCHMARKS:
        raise CliError(f"there is no benchmark {name!r}: use {', '.join(BENCHMARKS)}")
    if not (ROOT / "benchmarks" / "__init__.py").is_file():
        raise CliError("benchmarks are not installed with flodl: run flodl bench from a checkout of its repository")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", BENCHMARKS[name][0], *context.args]
    # a benchmark measures whole processes: it gets a fresh one, without what this one has imported
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, check=False)
    if done.returncode != 0:
        raise typer.Exit(done.returncode if done.returncode > 0 else 128 - done.returncode)


def _list() -> None:
    table = Table("benchmark", "what it measures", box=None, pad_edge=False)
    for name, (_, measures) in BENCHMARKS.items():
        table.add_row(name, measures)
    Console().print(table)
