"""How much of two unlike CPU workers a real run puts to use, checked from outside the engine.

    python -m benchmarks.efficiency [--recipe mnist-lenet] [--epochs 3] [--devices cpu,cpu@2.5] [--rounds 5] [--json]

Each round trains the recipe under each policy and backend. Just before and just after, it measures the devices with a
plain PyTorch loop, each alone and then all at once in a thread each, and takes the mean of the two. Counted is what
happens after the first epoch, by this program's own clock and its own count of samples:

- ``inside``: the engine's own ``capacity_efficiency``, of the epochs after the first.
- ``outside``: samples / (wall x the sum of the devices' rates), with the rates of the plain loops that run at once.
- ``solo``: the same with the rates of each device alone; it also sees workers that slow each other down.

Figures are medians over the rounds, with their range.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flodl_core import Ddp, EpochMetrics, WorkerSpec, parse_worker_spec
from flodl_core.data import as_source
from flows.recipes import Recipe, resolve_recipe

CASES = tuple(f"{policy}/{backend}" for policy in ("cadence", "async") for backend in ("gloo", "cpu"))
PLAIN_BATCHES = 100
WARM_UP = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one run gave."""

    inside: float
    outside: float
    solo: float
    accuracy: float
    epoch_samples: tuple[int, ...]


class PlainLoop:
    """What anyone would write: one device's training without the engine.

    Args:
        recipe: What is trained.
        dataset: Its data.
        spec: The device; an emulated slow one waits as it does in the engine.
    """

    def __init__(self, recipe: Recipe, dataset: object, spec: WorkerSpec) -> None:
        self._recipe = recipe
        self._source = as_source(dataset)
        self._stretch = spec.slowdown - 1.0
        self.rate = 0.0
        """Samples per second of the last ``run``, after its warm-up."""

    def run(self) -> None:
        """Train for a while in this thread."""
        torch.set_num_threads(1)
        model = self._recipe.model(torch.device("cpu"))
        optimizer = self._recipe.optimizer(model.parameters(), self._recipe.lr)
        order = torch.randperm(len(self._source))
        size = self._recipe.batch_size
        started_s = time.perf_counter()
        for number in range(WARM_UP + PLAIN_BATCHES):
            if number == WARM_UP:
                started_s = time.perf_counter()
            self._train(model, optimizer, order[number * size : (number + 1) * size])
        self.rate = PLAIN_BATCHES * size / (time.perf_counter() - started_s)

    def _train(self, model: nn.Module, optimizer: torch.optim.Optimizer, indices: Tensor) -> None:
        start_s = time.perf_counter()
        loss = self._recipe.loss(model, self._source.get(indices))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        time.sleep((time.perf_counter() - start_s) * self._stretch)


def rates_alone(loops: Sequence[PlainLoop]) -> float:
    """Samples per second of all devices together, each measured while the others do nothing."""
    for loop in loops:
        loop.run()
    return sum(loop.rate for loop in loops)


def rates_at_once(loops: Sequence[PlainLoop]) -> float:
    """The same while all of them train."""
    threads = [threading.Thread(target=loop.run) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(loop.rate for loop in loops)


class Outside:
    """Counts samples as ``train_fn`` sees them, by its own clock."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._lock = threading.Lock()
        self._num_samples = 0
        self.ends: list[tuple[float, int]] = []
        """When each epoch was reported, and the samples that had been trained by then."""

    def train_fn(self, model: nn.Module, batch: Any) -> Tensor:
        """The recipe's loss."""
        with self._lock:
            self._num_samples += len(batch[1])
        return self._recipe.loss(model, batch)

    def metrics_fn(self, _metrics: EpochMetrics) -> None:
        """Take down the time."""
        with self._lock:
            self.ends.append((time.perf_counter(), self._num_samples))

    def rate(self) -> float:
        """Samples per second after the first epoch."""
        (first_s, first), (last_s, last) = self.ends[0], self.ends[-1]
        return (last - first) / (last_s - first_s)


def run_once(
    recipe: Recipe, dataset: object, case: str, *, specs: list[WorkerSpec], epochs: int, loops: Sequence[PlainLoop]
) -> Figure:
    """Train the recipe once, as its defaults say, between two measurements of the devices."""
    policy, backend = case.split("/")
    solo, at_once = rates_alone(loops), rates_at_once(loops)
    outside = Outside(recipe)
    handle = (
        Ddp.builder(recipe.model, lambda params: recipe.optimizer(params, recipe.lr), outside.train_fn)
        .dataset(dataset)
        .batch_size(recipe.batch_size)
        .num_epochs(epochs)
        .policy(policy)
        .backend(backend)
        .devices(specs)
        .metrics_fn(outside.metrics_fn)
        .run()
    )
    state = handle.join()
    metrics = list(handle.metrics())
    model = recipe.model(torch.device("cpu"))
    state.load_into(model)
    assert recipe.evaluate is not None, "the recipe must have an evaluation"
    rate = outside.rate()
    solo, at_once = (solo + rates_alone(loops)) / 2, (at_once + rates_at_once(loops)) / 2
    return Figure(
        inside=statistics.mean(epoch.capacity_efficiency for epoch in metrics[1:]),
        outside=rate / at_once,
        solo=rate / solo,
        accuracy=recipe.evaluate(model)["accuracy"],
        epoch_samples=tuple(epoch.num_samples for epoch in metrics),
    )


def measure(recipe: Recipe, specs: list[WorkerSpec], *, epochs: int, rounds: int) -> dict[str, list[Figure]]:
    """All cases in alternation, each beside plain loops of the same minute."""
    dataset = recipe.dataset()
    loops = [PlainLoop(recipe, dataset, spec) for spec in specs]
    figures: dict[str, list[Figure]] = {case: [] for case in CASES}
    for round_ in range(rounds):
        for case in CASES:
            figure = run_once(recipe, dataset, case, specs=specs, epochs=epochs, loops=loops)
            figures[case].append(figure)
            sys.stderr.write(f"round {round_ + 1}/{rounds} {case}: {figure}\n")
    return figures


def summarize(figures: dict[str, list[Figure]]) -> list[dict[str, object]]:
    """A row for each case: medians and ranges."""
    rows: list[dict[str, object]] = []
    for case, runs in figures.items():
        row: dict[str, object] = {"case": case}
        for name in ("inside", "outside", "solo"):
            values = [getattr(run, name) for run in runs]
            row[name] = round(statistics.median(values), 3)
            row[f"{name}_range"] = [round(min(values), 3), round(max(values), 3)]
        row["accuracy"] = round(statistics.mean(run.accuracy for run in runs), 4)
        row["epoch_samples"] = sorted({num for run in runs for num in run.epoch_samples})
        rows.append(row)
    return rows


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="mnist-lenet")
    parser.add_argument("--epochs", type=int, default=3, help="at least 2 (default 3)")
    parser.add_argument("--devices", default="cpu,cpu@2.5")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.epochs < 2 or arguments.rounds < 1:
        parser.error("--epochs must be at least 2, --rounds at least 1")
    recipe = resolve_recipe(arguments.recipe, folder=Path.cwd())
    specs = [parse_worker_spec(device) for device in arguments.devices.split(",")]
    rows = summarize(measure(recipe, specs, epochs=arguments.epochs, rounds=arguments.rounds))
    if arguments.json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return
    sys.stdout.write(
        f"{'case':<14}{'inside':>8}{'outside':>9}{'range':>16}{'solo':>8}{'accuracy':>10}  samples an epoch\n"
    )
    for row in rows:
        sys.stdout.write(
            f"{row['case']!s:<14}{row['inside']!s:>8}{row['outside']!s:>9}{row['outside_range']!s:>16}"
            f"{row['solo']!s:>8}{row['accuracy']!s:>10}  {row['epoch_samples']}\n"
        )


if __name__ == "__main__":
    main()
