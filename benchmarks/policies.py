"""One recipe on two unlike workers, under every policy and backend: speed, capacity efficiency, accuracy.

    python benchmarks/policies.py [--recipe mnist-mlp] [--epochs 1] [--devices cpu,cpu@2.5] [--rounds 5] [--json]

Each round runs all cases once, in alternation, after one round to warm up. ``speed`` is the median over the rounds of
the case's samples per second over those of ``sync/gloo`` in the same round.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from flodl_core import Ddp, parse_worker_spec
from flows.recipes import Recipe, resolve_recipe

REFERENCE = "sync/gloo"
CASES = tuple(f"{policy}/{backend}" for policy in ("sync", "cadence", "async") for backend in ("gloo", "cpu"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one run gave."""

    samples_per_s: float
    capacity_efficiency: float
    accuracy: float
    num_samples: int
    num_syncs: int


def run_once(recipe: Recipe, dataset: object, case: str, *, devices: list[str], epochs: int) -> Figure:
    """Train the recipe once, as its defaults say."""
    policy, backend = case.split("/")
    builder = (
        Ddp.builder(recipe.model, lambda params: recipe.optimizer(params, recipe.lr), recipe.loss)
        .dataset(dataset)
        .batch_size(recipe.batch_size)
        .num_epochs(epochs)
        .policy(policy)
        .backend(backend)
        .devices([parse_worker_spec(device) for device in devices])
    )
    handle = builder.run()
    state = handle.join()
    model = recipe.model(torch.device("cpu"))
    state.load_into(model)
    assert recipe.evaluate is not None, "the recipe must have an evaluation"
    progress = handle.progress()
    return Figure(
        samples_per_s=progress.totals.num_samples / progress.totals.wall_s,
        capacity_efficiency=progress.totals.capacity_efficiency,
        accuracy=recipe.evaluate(model)["accuracy"],
        num_samples=progress.totals.num_samples,
        num_syncs=progress.num_syncs,
    )


def measure(run: Callable[[str], Figure], rounds: int) -> dict[str, list[Figure]]:
    """All cases in alternation; the first round is not counted."""
    figures: dict[str, list[Figure]] = {case: [] for case in CASES}
    for round_ in range(rounds + 1):
        for case in CASES:
            figure = run(case)
            if round_ > 0:
                figures[case].append(figure)
        sys.stderr.write(f"round {round_}/{rounds}\n")
    return figures


def summarize(figures: dict[str, list[Figure]]) -> list[dict[str, object]]:
    """A row for each case."""
    reference = [figure.samples_per_s for figure in figures[REFERENCE]]
    rows: list[dict[str, object]] = []
    for case, runs in figures.items():
        ratios = [run.samples_per_s / base for run, base in zip(runs, reference, strict=True)]
        efficiencies = [run.capacity_efficiency for run in runs]
        rows.append(
            {
                "case": case,
                "speed": round(statistics.median(ratios), 2),
                "speed_range": [round(min(ratios), 2), round(max(ratios), 2)],
                "capacity_efficiency": round(statistics.median(efficiencies), 3),
                "capacity_efficiency_range": [round(min(efficiencies), 3), round(max(efficiencies), 3)],
                "accuracy": round(statistics.mean(run.accuracy for run in runs), 4),
                "num_samples": runs[0].num_samples,
                "num_syncs": statistics.median(run.num_syncs for run in runs),
            }
        )
    return rows


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="mnist-mlp")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--devices", default="cpu,cpu@2.5")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    recipe = resolve_recipe(arguments.recipe, folder=Path.cwd())
    dataset = recipe.dataset()
    devices = arguments.devices.split(",")
    rows = summarize(
        measure(
            lambda case: run_once(recipe, dataset, case, devices=devices, epochs=arguments.epochs), arguments.rounds
        )
    )
    if arguments.json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return
    sys.stdout.write(
        f"{'case':<14}{'speed':>7}{'range':>15}{'efficiency':>12}{'range':>17}{'accuracy':>10}{'syncs':>7}\n"
    )
    for row in rows:
        sys.stdout.write(
            f"{row['case']!s:<14}{row['speed']!s:>7}{row['speed_range']!s:>15}{row['capacity_efficiency']!s:>12}"
            f"{row['capacity_efficiency_range']!s:>17}{row['accuracy']!s:>10}{row['num_syncs']!s:>7}\n"
        )


if __name__ == "__main__":
    main()
