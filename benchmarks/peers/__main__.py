"""flodl against what people use today: the same model, data, seed, batch size and threads, each in its own processes.

    python -m benchmarks.peers [--recipe mnist-mlp] [--devices cpu,cpu] [--epochs 2] [--rounds 5]
                               [--only NAME,...] [--json]

``speed`` is samples per second over DistributedDataParallel's in the same round; ``to loss`` how many times sooner than
it a contender reaches the loss on 10,000 training samples that it ends with, by a straight line from epoch to epoch
(blank where it does not get there). Medians over alternating rounds, after one to warm up, with the range of the middle
half. Each contender starts anew in processes of its own; their start is not counted.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from benchmarks.machine import describe_machine
from benchmarks.peers.lap import add_arguments, as_options

REFERENCE = "DistributedDataParallel"
LIMIT_S = 900
NEEDED = {"accelerate": "accelerate", "fabric": "lightning_fabric"}
"""Packages that flodl does without: ``make bench`` installs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Who takes part, and how it is started.

    Attributes:
        name: As in the table.
        module: What is run.
        options: Its own.
        is_launched: Whether by ``torchrun``, with a process for each worker.
    """

    name: str
    module: str
    options: tuple[str, ...]
    is_launched: bool


def rival(name: str, kind: str) -> Contender:
    """One of the rivals' loops."""
    return Contender(name=name, module="benchmarks.peers.rivals", options=("--kind", kind), is_launched=True)


def ours(policy: str, backend: str, workers: str = "thread") -> Contender:
    """flodl, set up in one of its ways."""
    options = ("--policy", policy, "--backend", backend, "--workers", workers)
    name = f"flodl {policy}/{backend} {workers}"
    return Contender(name=name, module="benchmarks.peers.ours", options=options, is_launched=False)


CONTENDERS = (
    rival(REFERENCE, "ddp"),
    rival("PeriodicModelAverager", "periodic"),
    rival("accelerate LocalSGD", "accelerate"),
    rival("Fabric DDP", "fabric"),
    rival("bare processes", "bare"),
    ours("sync", "gloo"),
    ours("cadence", "gloo"),
    ours("cadence", "cpu"),
    ours("async", "cpu"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One lap: samples per second, and (seconds, loss) at the end of each epoch."""

    samples_per_s: float
    marks: tuple[tuple[float, float], ...]

    def time_to(self, loss: float) -> float | None:
        """Seconds until the loss was reached, or None where it was not."""
        before: tuple[float, float] | None = None
        for time_s, here in self.marks:
            if here <= loss:
                if before is None or before[1] <= here:
                    return time_s
                return before[0] + (time_s - before[0]) * (before[1] - loss) / (before[1] - here)
            before = (time_s, here)
        return None


def run(contender: Contender, task_options: list[str], num_workers: int) -> Result:
    """One lap in processes of its own.

    Raises:
        SystemExit: It failed; what it said is in the message.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_workers}"]
    command = [sys.executable, *(launcher if contender.is_launched else []), "-m", contender.module]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(  # our own modules
        [*command, *contender.options, *task_options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{contender.name} failed:\n{done.stderr[:6000]}")
    lap = json.loads(done.stdout.strip().splitlines()[-1])
    marks = tuple((time_s, loss) for time_s, loss in lap["marks"])
    return Result(samples_per_s=lap["num_samples"] / lap["train_s"], marks=marks)


def measure(contenders: list[Contender], arguments: argparse.Namespace) -> dict[str, list[Result]]:
    """All of them in alternation; the first round is not counted."""
    results: dict[str, list[Result]] = {contender.name: [] for contender in contenders}
    num_workers = len(arguments.devices.split(","))
    for round_ in range(arguments.rounds + 1):
        for contender in contenders:
            result = run(contender, as_options(arguments), num_workers)
            if round_ > 0:
                results[contender.name].append(result)
            sys.stderr.write(f"round {round_}/{arguments.rounds} {contender.name}: {result.samples_per_s:.0f}/s\n")
    return results


def summarize(results: dict[str, list[Result]]) -> list[dict[str, object]]:
    """A row for each contender."""
    rows: list[dict[str, object]] = []
    for name, laps in results.items():
        pairs = list(zip(laps, results[REFERENCE], strict=True))
        speeds = [lap.samples_per_s / base.samples_per_s for lap, base in pairs]
        sooner = [
            base.marks[-1][0] / time_s for lap, base in pairs if (time_s := lap.time_to(base.marks[-1][1])) is not None
        ]
        row: dict[str, object] = {"contender": name, "speed": round(statistics.median(speeds), 2)}
        row["speed_middle_half"] = _middle_half(speeds)
        row["samples_per_s"] = round(statistics.median(lap.samples_per_s for lap in laps))
        row["to_loss"] = round(statistics.median(sooner), 2) if len(sooner) > len(laps) / 2 else None
        row["loss"] = round(statistics.median(lap.marks[-1][1] for lap in laps), 4)
        rows.append(row)
    return rows


def _middle_half(values: list[float]) -> list[float]:
    low, _, high = statistics.quantiles(values, n=4)
    return [round(low, 2), round(high, 2)]


def choose(only: str | None, parser: argparse.ArgumentParser) -> list[Contender]:
    """Those that are asked for and can be started here; the reference always."""
    wanted = None if only is None else [name.strip().lower() for name in only.split(",")]
    chosen: list[Contender] = []
    for contender in CONTENDERS:
        if wanted is not None and contender.name != REFERENCE and contender.name.lower() not in wanted:
            continue
        package = NEEDED.get(contender.options[1])
        if package is not None and find_spec(package) is None:
            sys.stderr.write(f"{contender.name} is left out: {package} is not installed\n")
            continue
        chosen.append(contender)
    unknown = set(wanted or ()) - {contender.name.lower() for contender in CONTENDERS}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}: use {', '.join(each.name for each in CONTENDERS)}")
    return chosen


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, at least 2 (default 5)")
    parser.add_argument("--only", help="names of contenders, with commas (default all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.rounds < 2 or arguments.epochs < 1:
        parser.error("--rounds must be at least 2, --epochs at least 1")
    rows = summarize(measure(choose(arguments.only, parser), arguments))
    machine = f"{describe_machine()}, torch {torch.__version__}"
    if arguments.json:
        sys.stdout.write(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
        return
    sys.stdout.write(f"{arguments.recipe} on {arguments.devices}, {arguments.epochs} epochs; {machine}\n")
    sys.stdout.write(f"{'contender':<26}{'speed':>7}{'middle half':>16}{'to loss':>9}{'loss':>9}{'samples/s':>11}\n")
    for row in rows:
        to_loss = "" if row["to_loss"] is None else row["to_loss"]
        sys.stdout.write(
            f"{row['contender']!s:<26}{row['speed']!s:>7}{row['speed_middle_half']!s:>16}{to_loss!s:>9}"
            f"{row['loss']!s:>9}{row['samples_per_s']!s:>11}\n"
        )


if __name__ == "__main__":
    main()
