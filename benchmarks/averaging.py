"""What the weighted average of large replicas takes, as a multiple of one plain copy of a replica.

    python -m benchmarks.averaging [--ranks 4] [--numel 50000000] [--rounds 7] [--threads N] [--json]

``one output``: the mean of all replicas into a tensor of its own, as for the result of a stopped run. ``consensus``:
the same with each rank's distance from it, as averages through the CPU are. ``in place``: the same written to every
replica, as at a rendezvous. ``gradients``: in place without the distances, as in sync. Every figure is the median over
alternating rounds, after one to warm up, of that round's time over the same round's plain ``copy_``; with the range of
the middle half. ``--threads 1`` is what averaging has beside CPU workers that use all cores; ``--blocks
65536,131072`` tries several sizes of block, in elements.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

from benchmarks.machine import describe_machine
from flodl_core.averaging import BLOCK, Averager
from flodl_core.messages import Entry
from flodl_core.replica import ReplicaState
from flodl_core.tally import Tally, tally

TARGETS = {"one output": 3.0, "in place": 6.0}
"""Most copies that a case may take."""


def make_states(ranks: int, numel: int) -> dict[int, ReplicaState]:
    """Replicas of float32 parameters, some way apart."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(numel, generator=generator)
    nothing = torch.empty(0, dtype=torch.int64)
    return {
        rank: ReplicaState(params=(base + 0.01 * rank,), floating=(), integer=nothing, has_grad=(True,))
        for rank in range(ranks)
    }


def make_terms(ranks: int) -> Tally:
    """Weights that differ."""
    entries = [
        Entry(rank=rank, round=0, num_samples=64 * (rank + 1), total_batches=1, completed={}, is_finite=True)
        for rank in range(ranks)
    ]
    terms = tally(entries, epochs=(), epoch_size=1)
    assert terms is not None, "all ranks are finite"
    return terms


def make_cases(ranks: int, numel: int, blocks: list[int]) -> dict[str, Callable[[], object]]:
    """What is timed, by name; ``copy`` is what the others are compared with."""
    states, terms = make_states(ranks, numel), make_terms(ranks)
    source, target = states[0].params[0], torch.empty(numel)
    cases: dict[str, Callable[[], object]] = {"copy": lambda: target.copy_(source)}
    for block in blocks:
        averager = Averager(block=block)
        mark = f" /{block}" if len(blocks) > 1 else ""
        cases["one output" + mark] = lambda averager=averager: averager.average(states, terms)  # type: ignore[misc]
        cases["consensus" + mark] = lambda averager=averager: averager.consensus(states, terms)  # type: ignore[misc]
        cases["in place" + mark] = lambda averager=averager: averager.consensus_in_place(states, terms)  # type: ignore[misc]
        cases["gradients" + mark] = lambda averager=averager: averager.average_in_place(states, terms)  # type: ignore[misc]
    return cases


def measure(cases: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds by case, one figure a round."""
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(rounds + 1):
        for name, case in cases.items():
            start_s = time.perf_counter()
            case()
            if round_ > 0:
                figures[name].append(time.perf_counter() - start_s)
        sys.stderr.write(f"round {round_}/{rounds}\n")
    return figures


def summarize(figures: dict[str, list[float]], num_bytes: int) -> list[dict[str, object]]:
    """A row for each case; ``gb_per_s`` of the plain copy counts what it reads and what it writes."""
    rows: list[dict[str, object]] = []
    for name, values in figures.items():
        copies = [value / copy for value, copy in zip(values, figures["copy"], strict=True)]
        low, _, high = statistics.quantiles(copies, n=4)
        target = TARGETS.get(name.split(" /")[0])
        row: dict[str, object] = {
            "case": name,
            "ms": round(1e3 * statistics.median(values), 1),
            "copies": round(statistics.median(copies), 2),
            "middle_half": [round(low, 2), round(high, 2)],
        }
        if name == "copy":
            row["gb_per_s"] = round(2 * num_bytes / statistics.median(values) / 1e9, 1)
        if target is not None:
            row |= {"target": target, "met": statistics.median(copies) <= target}
        rows.append(row)
    return rows


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, help="replicas (default 4)")
    parser.add_argument("--numel", type=int, default=50_000_000, help="parameters of each (default 50,000,000)")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds, at least 2 (default 7)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="intra-op threads (as torch has)")
    parser.add_argument("--blocks", default=str(BLOCK), help=f"elements in a block, several with commas ({BLOCK})")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if min(arguments.ranks, arguments.numel, arguments.threads, arguments.rounds - 1) < 1:
        parser.error("--ranks, --numel and --threads must be at least 1, --rounds at least 2")
    try:
        blocks = [int(block) for block in arguments.blocks.split(",")]
    except ValueError:
        parser.error(f"--blocks must be whole numbers, not {arguments.blocks}")
    if min(blocks) < 1:
        parser.error("--blocks must be at least 1")
    torch.set_num_threads(arguments.threads)
    figures = measure(make_cases(arguments.ranks, arguments.numel, blocks), arguments.rounds)
    rows = summarize(figures, 4 * arguments.numel)
    if arguments.json:
        sys.stdout.write(json.dumps({"machine": describe_machine(), "rows": rows}, indent=1) + "\n")
        return
    sys.stdout.write(f"{describe_machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    sys.stdout.write(f"{'case':<22}{'ms':>9}{'copies':>9}{'middle half':>18}{'target':>9}\n")
    for row in rows:
        figures_of = f"{row['ms']!s:>9}{row['copies']!s:>9}{row['middle_half']!s:>18}{row.get('target', '')!s:>9}"
        sys.stdout.write(f"{row['case']!s:<22}{figures_of}\n")


if __name__ == "__main__":
    main()
