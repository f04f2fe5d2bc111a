"""What every contender is given, and what it hands back."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flodl_core import WorkerSpec, parse_worker_spec
from flows.recipes import Recipe, resolve_recipe

NUM_JUDGED = 10_000
"""Training samples on which a state is judged, the first of the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The same for all: model, data, seed, samples in a batch, intra-op threads, learning rate.

    Attributes:
        recipe: Model, data and their defaults.
        devices: One for each worker; a slow one takes that multiple of its own time.
        epochs: Times through the data.
        seed: Of the parameters and of the order of samples.
        period: For rivals that average now and then: batches of each worker from one average to the next.
    """

    recipe: Recipe
    devices: tuple[WorkerSpec, ...]
    epochs: int
    seed: int
    period: int

    @property
    def lr(self) -> float:
        """Scaled by the number of workers, as flodl does by default (Goyal et al. 2017)."""
        return self.recipe.lr * len(self.devices)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of a task."""
    parser.add_argument("--recipe", default="mnist-mlp")
    parser.add_argument("--devices", default="cpu,cpu", help="one for each worker (default cpu,cpu)")
    parser.add_argument("--epochs", type=int, default=2, help="times through the data (default 2)")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--period", type=int, default=16, help="batches between averages of periodic rivals (16)")


def as_options(arguments: argparse.Namespace) -> list[str]:
    """The same arguments for a process of its own."""
    names = ("recipe", "devices", "epochs", "seed", "period")
    return [text for name in names for text in (f"--{name}", str(getattr(arguments, name)))]


def make_task(arguments: argparse.Namespace) -> Task:
    """What the arguments describe."""
    return Task(
        recipe=resolve_recipe(arguments.recipe, folder=Path.cwd()),
        devices=tuple(parse_worker_spec(device) for device in arguments.devices.split(",")),
        epochs=arguments.epochs,
        seed=arguments.seed,
        period=arguments.period,
    )


@dataclass(slots=True)
class Lap:
    """One training run, by its own clock; states are judged once it is over.

    Attributes:
        num_samples: Trained by all workers.
        train_s: From the first batch to the end of the last, in seconds.
    """

    num_samples: int = 0
    train_s: float = 0.0
    _start_s: float = 0.0
    _marks: list[tuple[float, dict[str, Tensor]]] = field(default_factory=list)

    def start(self) -> None:
        """The first batch begins."""
        self._start_s = time.perf_counter()

    def mark(self, model: nn.Module) -> None:
        """An epoch is over: keep the time and the state."""
        state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        self._marks.append((time.perf_counter() - self._start_s, state))

    def stop(self, num_samples: int) -> None:
        """The last batch is done."""
        self.train_s, self.num_samples = time.perf_counter() - self._start_s, num_samples

    def hand_in(self, task: Task, judge: Callable[[nn.Module], float]) -> None:
        """Print it as one line of JSON: ``marks`` are seconds and loss at the end of each epoch."""
        model = task.recipe.model(torch.device("cpu"))
        marks = []
        for time_s, state in self._marks:
            model.load_state_dict(state)
            marks.append([time_s, judge(model)])
        lap = {"train_s": self.train_s, "num_samples": self.num_samples, "marks": marks}
        sys.stdout.write(json.dumps(lap) + "\n")


def make_judge(task: Task, data: tuple[Tensor, ...]) -> Callable[[nn.Module], float]:
    """Loss on the first of the training samples."""

    def judge(model: nn.Module) -> float:
        model.eval()
        with torch.no_grad():
            return float(task.recipe.loss(model, tuple(tensor[:NUM_JUDGED] for tensor in data)))

    return judge


def load_tensors(task: Task) -> tuple[Tensor, ...]:
    """The recipe's data as tensors in memory."""
    data: Any = task.recipe.dataset()
    tensors = data if isinstance(data, tuple) else getattr(data, "tensors", None)
    if tensors is None:
        raise SystemExit(f"{task.recipe.name} does not hold its data as tensors: the rivals' loops cannot use it")
    return tuple(tensors)
