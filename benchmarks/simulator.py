"""What simulated runs reach over many seeds, and what a message costs the coordinator at 8 and at 1,000 ranks.

    python -m benchmarks.simulator [--seeds 20] [--rounds 5] [--json]

``efficiency``: two ranks (1 : 2.5) and eight unlike ones of which the first slows down to 0.4 in epoch 4, ten epochs of
60,000 samples, batches of 64, averages of 3 ms, 5 % jitter; the least and the median over the seeds of capacity
efficiency and of wall time as a share of what lockstep takes.

``messages``: process CPU time of a simulated run over the messages that its coordinator handled, at 8 and at 1,000
ranks in alternating rounds after one to warm up; a round's figure is the ratio of the two. The time is that of the
whole simulation, workers and clock included; ``handle_ratio`` is that of the part spent inside the coordinator.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.machine import describe_machine
from flodl_core.commands import Command
from flodl_core.local_options import LocalOptions
from flodl_core.messages import ToCoordinator
from flodl_core.policies import ApplyPolicy
from flodl_core.simulation import Simulation, SimulationReport, SimulationSpec, SlowDown, simulate

POLICIES = (ApplyPolicy.CADENCE, ApplyPolicy.ASYNC)
BACKENDS = ("gloo", "cpu")
TARGETS = {
    ("cadence", "gloo"): 0.97,
    ("cadence", "cpu"): 0.99,
    ("async", "gloo"): 0.96,
    ("async", "cpu"): 0.99,
}
MOST_OF_LOCKSTEP = 0.61
MOST_RATIO = 2.0
MACHINES: dict[str, tuple[tuple[float, ...], tuple[SlowDown, ...]]] = {
    "1 : 2.5": ((1.0, 0.4), ()),
    "eight": ((1.0, 1.0, 0.9, 0.8, 0.5, 0.5, 0.4, 0.3), (SlowDown(rank=0, factor=0.4, epoch=4),)),
}
FEW_RANKS, MANY_RANKS = 8, 1_000
FEW_BATCHES, MANY_BATCHES = 4_000, 60
"""Batches of each rank: enough for both runs to take a second or more."""


@dataclass(slots=True)
class Cost:
    """What the messages of one simulated run cost.

    Attributes:
        num_messages: Calls of the coordinator's ``handle``.
        cpu_us: Process CPU time of the simulation for each.
        handle_us: CPU time inside ``handle`` for each.
        real_s: Real time of the simulation.
    """

    num_messages: int
    cpu_us: float
    handle_us: float
    real_s: float


def reach(seeds: int) -> list[dict[str, object]]:
    """A row for each kind of machines, policy and backend."""
    rows: list[dict[str, object]] = []
    for machines, (speeds, slow_downs) in MACHINES.items():
        for policy in POLICIES:
            for backend in BACKENDS:
                reports = [_run(speeds, slow_downs, policy, backend, seed) for seed in range(seeds)]
                rows.append(_reached(machines, policy, backend, reports))
                sys.stderr.write(f"{machines} {policy}/{backend}: {seeds} seeds\n")
    return rows


def _run(
    speeds: Sequence[float], slow_downs: tuple[SlowDown, ...], policy: ApplyPolicy, backend: str, seed: int
) -> SimulationReport:
    return simulate(
        SimulationSpec(
            batch_ms=tuple(10.0 / speed for speed in speeds),
            epoch_size=60_000,
            batch_size=64,
            num_epochs=10,
            options=LocalOptions(policy=policy, meets=backend != "cpu"),
            average_ms=3.0,
            jitter=0.05,
            slow_downs=slow_downs,
            seed=seed,
        )
    )


def _reached(machines: str, policy: str, backend: str, reports: Sequence[SimulationReport]) -> dict[str, object]:
    efficiencies = [report.capacity_efficiency for report in reports]
    shares = [report.wall_s / report.lockstep_wall_s for report in reports]
    target = TARGETS[policy, backend]
    is_quick = max(shares) <= MOST_OF_LOCKSTEP
    is_whole = all(report.num_samples == 600_000 for report in reports)
    return {
        "machines": machines,
        "case": f"{policy}/{backend}",
        "least": round(min(efficiencies), 4),
        "median": round(statistics.median(efficiencies), 4),
        "target": target,
        "of_lockstep": round(statistics.median(shares), 3),
        "most_of_lockstep": round(max(shares), 3),
        "num_samples": sorted({report.num_samples for report in reports}),
        "met": min(efficiencies) >= target and is_quick and is_whole,
    }


def cost_of_messages(num_ranks: int, num_batches: int, policy: ApplyPolicy, backend: str) -> Cost:
    """Simulate once.

    Args:
        num_ranks: Ranks, of four speeds.
        num_batches: Of each rank, on average.
        policy: When they are averaged.
        backend: How.
    """
    num_epochs = 10
    simulation = Simulation(
        SimulationSpec(
            batch_ms=tuple(10.0 / (1.0, 0.9, 0.8, 0.5)[rank % 4] for rank in range(num_ranks)),
            epoch_size=64 * num_ranks * num_batches // num_epochs,
            batch_size=64,
            num_epochs=num_epochs,
            options=LocalOptions(policy=policy, meets=backend != "cpu"),
            jitter=0.05,
        )
    )
    num_calls = _count_calls(simulation)
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    simulation.run()
    cpu_s, real_s = time.process_time() - start_cpu_s, time.perf_counter() - start_s
    handle_s = _time_inside(simulation.spec)
    num_messages = num_calls[0]
    return Cost(num_messages, 1e6 * cpu_s / num_messages, 1e6 * handle_s / num_messages, real_s)


def _count_calls(simulation: Simulation) -> list[int]:
    handle, num_calls = simulation.coordinator.handle, [0]

    def counted(message: ToCoordinator, now_s: float) -> list[Command]:
        num_calls[0] += 1
        return handle(message, now_s)

    simulation.coordinator.handle = counted  # type: ignore[method-assign]  # counts, and hands on
    return num_calls


def _time_inside(spec: SimulationSpec) -> float:
    """Seconds of CPU inside the coordinator in the same run, timed apart: two looks at the clock cost as much again."""
    simulation = Simulation(spec)
    handle, spent_s = simulation.coordinator.handle, [0.0]

    def timed(message: ToCoordinator, now_s: float) -> list[Command]:
        start_s = time.process_time()
        commands = handle(message, now_s)
        spent_s[0] += time.process_time() - start_s
        return commands

    simulation.coordinator.handle = timed  # type: ignore[method-assign]  # times, and hands on
    simulation.run()
    return spent_s[0]


def compare_messages(rounds: int) -> list[dict[str, object]]:
    """A row for each policy and backend: medians over the rounds, and the ratio's quartiles."""
    cases = [(policy, backend) for policy in POLICIES for backend in BACKENDS]
    few: dict[str, list[Cost]] = {f"{policy}/{backend}": [] for policy, backend in cases}
    many: dict[str, list[Cost]] = {name: [] for name in few}
    for round_ in range(rounds + 1):
        for policy, backend in cases:
            costs = (
                cost_of_messages(FEW_RANKS, FEW_BATCHES, policy, backend),
                cost_of_messages(MANY_RANKS, MANY_BATCHES, policy, backend),
            )
            if round_ > 0:
                few[f"{policy}/{backend}"].append(costs[0])
                many[f"{policy}/{backend}"].append(costs[1])
        sys.stderr.write(f"round {round_}/{rounds}\n")
    return [_compared(name, few[name], many[name]) for name in few]


def _compared(name: str, few: Sequence[Cost], many: Sequence[Cost]) -> dict[str, object]:
    ratios = [many_.cpu_us / few_.cpu_us for few_, many_ in zip(few, many, strict=True)]
    handle_ratios = [many_.handle_us / few_.handle_us for few_, many_ in zip(few, many, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "case": name,
        "us_at_8": round(statistics.median(cost.cpu_us for cost in few), 1),
        "us_at_1000": round(statistics.median(cost.cpu_us for cost in many), 1),
        "ratio": round(statistics.median(ratios), 2),
        "quartiles": [round(quartiles[0], 2), round(quartiles[2], 2)],
        "handle_ratio": round(statistics.median(handle_ratios), 2),
        "num_messages": [few[0].num_messages, many[0].num_messages],
        "real_s_at_1000": round(statistics.median(cost.real_s for cost in many), 1),
        "met": statistics.median(ratios) <= MOST_RATIO,
    }


def print_table(rows: Sequence[dict[str, object]]) -> None:
    """Rows as aligned columns under their names."""
    names = list(rows[0])
    cells = [names, *([str(row[name]) for name in names] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(names))]
    for row in cells:
        sys.stdout.write("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + "\n")


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="seeds of each case, at least 1 (default 20)")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, at least 2 (default 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.seeds < 1 or arguments.rounds < 2:
        parser.error("--seeds must be at least 1 and --rounds at least 2")
    efficiency, messages = reach(arguments.seeds), compare_messages(arguments.rounds)
    if arguments.json:
        result = {"machine": describe_machine(), "efficiency": efficiency, "messages": messages}
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
        return
    sys.stdout.write(f"{describe_machine()}\n\n")
    print_table(efficiency)
    sys.stdout.write("\n")
    print_table(messages)


if __name__ == "__main__":
    main()
