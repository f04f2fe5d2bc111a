"""What the engine costs per batch: two thread workers on a tiny model against two bare threads, same torch calls.

    python -m benchmarks.engine_overhead [--rounds 7] [--only cadence/gloo,async/cpu] [--json]

Each round trains the same number of batches once bare and once with each policy and backend, in alternation; the
figures are medians over the rounds, with the spread between the quartiles. ``cost`` is what a batch takes beyond the
bare one, in microseconds of one worker's wall time.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from benchmarks.machine import describe_machine
from flodl_core import Ddp, WorkerSpec

NUM_SAMPLES = 256_000  # enough that what a run costs once, such as drawing the model, hardly counts
BATCH_SIZE = 16
NUM_WORKERS = 2
CASES = tuple(f"{policy}/{backend}" for policy in ("cadence", "async", "sync") for backend in ("gloo", "cpu"))


def make_model(_device: torch.device) -> nn.Module:
    """A model so small that almost only fixed costs are left."""
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def make_optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Plain SGD."""
    return torch.optim.SGD(params, lr=0.01)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def make_data() -> tuple[Tensor, Tensor]:
    """Random inputs and labels."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(NUM_SAMPLES, 16, generator=generator)
    return inputs, torch.randint(0, 4, (NUM_SAMPLES,), generator=generator)


def train_bare(data: tuple[Tensor, Tensor]) -> float:
    """Two threads, each with its own model and half of the batches; returns microseconds per batch and worker."""
    order = torch.randperm(NUM_SAMPLES)
    half = NUM_SAMPLES // NUM_WORKERS

    def work(rank: int) -> None:
        torch.set_num_threads(1)
        model = make_model(torch.device("cpu"))
        optimizer = make_optimizer(list(model.parameters()))
        for start in range(rank * half, (rank + 1) * half, BATCH_SIZE):
            indices = order[start : start + BATCH_SIZE]
            loss = loss_of(model, (data[0].index_select(0, indices), data[1].index_select(0, indices)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(NUM_WORKERS)]
    start_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _us_per_batch(time.perf_counter() - start_s)


def train_engine(data: tuple[Tensor, Tensor], policy: str, backend: str) -> float:
    """The same with the engine, from the first batch's start to the last one's end."""
    handle = (
        Ddp.builder(make_model, make_optimizer, loss_of)
        .dataset(data)
        .batch_size(BATCH_SIZE)
        .num_epochs(1)
        .policy(policy)
        .backend(backend)
        .devices([WorkerSpec("cpu")] * NUM_WORKERS)
        .run()
    )
    handle.join()
    return _us_per_batch(handle.progress().totals.wall_s)


def _us_per_batch(wall_s: float) -> float:
    return 1e6 * wall_s / (NUM_SAMPLES / NUM_WORKERS / BATCH_SIZE)


def measure(rounds: int, chosen: Sequence[str]) -> dict[str, list[float]]:
    """Microseconds per batch by case, one figure a round, after one round to warm up."""
    data = make_data()
    cases: dict[str, Callable[[], float]] = {"bare": lambda: train_bare(data)}
    for policy, backend in (name.split("/") for name in chosen):
        cases[f"{policy}/{backend}"] = lambda policy=policy, backend=backend: train_engine(data, policy, backend)  # type: ignore[misc]
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(rounds + 1):
        for name, case in cases.items():
            figure = case()
            if round_ > 0:
                figures[name].append(figure)
        sys.stderr.write(f"round {round_}/{rounds}\n")
    return figures


def summarize(figures: dict[str, list[float]]) -> list[dict[str, object]]:
    """A row for each case: median, quartiles, and what it costs beyond the bare loop in the same round."""
    rows: list[dict[str, object]] = []
    for name, values in figures.items():
        costs = [value - bare for value, bare in zip(values, figures["bare"], strict=True)]
        quartiles = statistics.quantiles(values, n=4)
        rows.append(
            {
                "case": name,
                "us_per_batch": round(statistics.median(values), 1),
                "quartiles": [round(quartiles[0], 1), round(quartiles[2], 1)],
                "cost_us": round(statistics.median(costs), 1),
                "ratio": round(statistics.median(v / b for v, b in zip(values, figures["bare"], strict=True)), 3),
            }
        )
    return rows


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds, at least 2 (default 7)")
    parser.add_argument("--only", default=",".join(CASES), help="policies and backends, with commas (default all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("--rounds must be at least 2")
    chosen = arguments.only.split(",")
    if not set(chosen) <= set(CASES):
        parser.error(f"--only takes {', '.join(CASES)}")
    rows = summarize(measure(arguments.rounds, chosen))
    machine = f"{describe_machine()}, torch {torch.__version__}"
    if arguments.json:
        sys.stdout.write(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
        return
    sys.stdout.write(f"{machine}\n")
    sys.stdout.write(f"{'case':<14}{'us/batch':>10}{'quartiles':>20}{'cost us':>10}{'ratio':>8}\n")
    for row in rows:
        sys.stdout.write(
            f"{row['case']!s:<14}{row['us_per_batch']!s:>10}{row['quartiles']!s:>20}{row['cost_us']!s:>10}{row['ratio']!s:>8}\n"
        )


if __name__ == "__main__":
    main()
