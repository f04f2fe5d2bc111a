"""What a timeline costs a run: process CPU time and wall time per batch, with and without one, in alternation.

    python -m benchmarks.timeline [--rounds 10] [--batches 750]

Each round trains LeNet on two unlike CPU workers once with a timeline and once without, in an order that alternates.
The figures are medians over the rounds; ``ratio`` compares the two runs of each round, with the spread between the
quartiles. On a machine that does other work, more rounds tell more.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flodl_core import Ddp, Timeline
from flodl_core.timeline.probe import MachineProbe

NUM_SAMPLES = 6_000
BATCH_SIZE = 32
DEVICES = ("cpu", "cpu@2.5")

Figures = tuple[float, float]
"""CPU and wall milliseconds per batch."""


def make_model(device: torch.device) -> nn.Module:
    """LeNet for 28 x 28 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    ).to(device)


def make_optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Plain SGD."""
    return torch.optim.SGD(params, lr=0.01)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def train(data: tuple[Tensor, Tensor], num_batches: int, timeline: Timeline | None) -> Figures:
    """One run of so many batches."""
    builder = Ddp.builder(make_model, make_optimizer, loss_of).dataset(data).batch_size(BATCH_SIZE)
    builder.num_epochs(1_000_000).max_steps(num_batches).devices(DEVICES)
    if timeline is not None:
        builder.timeline(timeline)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    with builder.run() as handle:
        handle.join()
        num_trained = handle.progress().totals.num_batches
    return 1e3 * (time.process_time() - cpu_s) / num_trained, 1e3 * (time.perf_counter() - wall_s) / num_trained


def sample_us(num_reads: int = 300) -> float:
    """CPU microseconds that one sample of this machine takes."""
    probe = MachineProbe([])
    start_s = time.thread_time()
    for number in range(num_reads):
        probe.read(0.1 * number)
    return 1e6 * (time.thread_time() - start_s) / num_reads


def spread(values: Sequence[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def summarize(plain: Sequence[Figures], watched: Sequence[Figures]) -> dict[str, object]:
    """Medians: milliseconds per batch without a timeline and with one, and the ratio of the two in the same round."""
    report: dict[str, object] = {"sample_us": round(sample_us(), 1)}
    for index, name in enumerate(("cpu", "wall")):
        report[name] = {
            "plain_ms": statistics.median(figures[index] for figures in plain),
            "watched_ms": statistics.median(figures[index] for figures in watched),
            "ratio": statistics.median(a[index] / b[index] for b, a in zip(plain, watched, strict=True)),
        }
    return report


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="at least 2")
    parser.add_argument("--batches", type=int, default=750, help="of each run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("--rounds must be at least 2")
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(NUM_SAMPLES, 1, 28, 28, generator=generator), torch.randint(0, 10, (NUM_SAMPLES,))
    train(data, args.batches, None)  # what is made once in a process
    plain: list[Figures] = []
    watched: list[Figures] = []
    for number in range(args.rounds):
        for is_watched in (False, True) if number % 2 else (True, False):
            figures = train(data, args.batches, Timeline() if is_watched else None)
            (watched if is_watched else plain).append(figures)
    if args.json:
        print(json.dumps(summarize(plain, watched), indent=1))
        return
    for index, name in enumerate(("CPU", "wall")):
        ratios = [after[index] / before[index] for before, after in zip(plain, watched, strict=True)]
        print(f"{name:4} ms per batch: without {spread([figures[index] for figures in plain])}")
        print(f"{'':19} with {spread([figures[index] for figures in watched])}, ratio {spread(ratios)}")
    print(f"one sample: {sample_us():.0f} us of CPU time")


if __name__ == "__main__":
    main()
