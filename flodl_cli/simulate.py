"""``flodl simulate``: its options."""

from typing import TYPE_CHECKING, Annotated

import typer

from flodl_cli.failures import CliError
from flodl_cli.simulation_input import (
    check_size,
    parse_death,
    parse_ratios,
    parse_slow_down,
    parse_speed_hint,
    parse_speeds,
    parse_stall,
    parse_switch,
)

if TYPE_CHECKING:
    from flodl_core.simulation import SimulationSpec

TROUBLE, PACE = "What goes wrong", "Pace and limits"

Speeds = Annotated[
    str,
    typer.Option(
        metavar="SPEED,...", help="A rank each, relative: at 0.4 a batch takes 2.5 times as long. 0.4x8: eight of them."
    ),
]
Policy = Annotated[str, typer.Option(help="When the replicas are averaged: sync, cadence or async.")]
Backend = Annotated[str, typer.Option(help="How they are averaged: nccl, gloo (both an all-reduce) or cpu.")]
Epochs = Annotated[int, typer.Option(metavar="N", min=1, help="Times that every sample is trained.")]
Samples = Annotated[int, typer.Option(metavar="N", min=1, help="Samples in an epoch.")]
BatchSize = Annotated[int, typer.Option(metavar="N", min=1, help="Samples in a worker's batch.")]
BatchMs = Annotated[float, typer.Option(help="What a full batch takes at speed 1, in milliseconds.")]
AverageMs = Annotated[float, typer.Option(help="What an average takes.")]
StallMs = Annotated[float, typer.Option(help="With cpu, what a worker spends on an average: its snapshot and merge.")]
LatencyMs = Annotated[float, typer.Option(help="The longest that a message takes.")]
Jitter = Annotated[float, typer.Option(help="A batch takes up to this share more or less than its time.")]
Slow = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=TROUBLE,
        metavar="RANK:FACTOR@EPOCH",
        help="From that epoch (from 0) on, at this share of its first speed.",
    ),
]
Stalls = Annotated[
    list[str] | None,
    typer.Option(
        "--stall",
        rich_help_panel=TROUBLE,
        metavar="RANK:MS@BATCH",
        help="That batch (from 0) of the rank takes so much longer.",
    ),
]
Die = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=TROUBLE, metavar="RANK@EPOCH", help="The worker fails in its first batch of that epoch."
    ),
]
Anchor = Annotated[
    int,
    typer.Option(
        rich_help_panel=PACE, metavar="N", min=1, help="Batches of the slowest worker between two averages, at first."
    ),
]
MaxAnchor = Annotated[int, typer.Option(rich_help_panel=PACE, metavar="N", min=1, help="The same, at most.")]
OverheadTarget = Annotated[
    float,
    typer.Option(
        rich_help_panel=PACE,
        metavar="SHARE",
        min=0.01,
        max=0.5,
        help="Share of the compute time that averaging may cost.",
    ),
]
MaxBatchDiff = Annotated[
    int | None,
    typer.Option(rich_help_panel=PACE, metavar="N", min=0, help="Batches that a worker may be ahead of the slowest."),
]
MaxOvershoot = Annotated[
    int | None,
    typer.Option(rich_help_panel=PACE, metavar="N", min=0, help="Batches that a worker may go into the next epoch."),
]
ProgressiveDispatch = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=PACE,
        metavar="true|false",
        help="Deal an epoch bit by bit, or whole at its start; default: the policy's own.",
    ),
]
PartitionRatios = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=PACE, metavar="RATIO,...", help="Share of each worker, instead of what its speed gives it."
    ),
]
SpeedHint = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=PACE, metavar="RANK:RATIO", help="All others are so many times as fast, until measured."
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(rich_help_panel=PACE, metavar="N", min=1, help="End after so many optimizer steps of all workers."),
]
MaxTimeS = Annotated[
    float | None,
    typer.Option(rich_help_panel=PACE, metavar="SECONDS", help="End after so many seconds of virtual time."),
]
Seed = Annotated[int, typer.Option(help="Of jitter and latencies.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on standard output.")]


def simulate(
    speeds: Speeds,
    policy: Policy = "cadence",
    backend: Backend = "cpu",
    epochs: Epochs = 10,
    samples: Samples = 60_000,
    batch_size: BatchSize = 64,
    batch_ms: BatchMs = 10.0,
    average_ms: AverageMs = 3.0,
    stall_ms: StallMs = 0.1,
    latency_ms: LatencyMs = 0.1,
    jitter: Jitter = 0.0,
    slow: Slow = None,
    stall: Stalls = None,
    die: Die = None,
    anchor: Anchor = 10,
    max_anchor: MaxAnchor = 200,
    overhead_target: OverheadTarget = 0.03,
    max_batch_diff: MaxBatchDiff = None,
    max_overshoot: MaxOvershoot = None,
    progressive_dispatch: ProgressiveDispatch = None,
    partition_ratios: PartitionRatios = None,
    speed_hint: SpeedHint = None,
    max_steps: MaxSteps = None,
    max_time_s: MaxTimeS = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Try out a run on imagined machines: the engine itself in virtual time, against plain data parallelism.

    Example: flodl simulate --speeds 1,0.4 --backend gloo --jitter 0.05
    """
    from flodl_core.errors import ConfigError  # torch comes with it, and takes a while to import
    from flodl_core.local_options import LocalOptions
    from flodl_core.policies import ApplyPolicy, AverageBackend, parse_choice
    from flodl_core.simulation import SimulationSpec

    if max_anchor < anchor:
        raise CliError(f"--max-anchor ({max_anchor}) must be at least --anchor ({anchor})")
    relative = parse_speeds(speeds)
    check_size(num_ranks=len(relative), epochs=epochs, samples=samples, batch_size=batch_size)
    try:
        spec = SimulationSpec(
            batch_ms=tuple(batch_ms / speed for speed in relative),
            epoch_size=samples,
            batch_size=batch_size,
            num_epochs=epochs,
            options=LocalOptions(
                policy=parse_choice(ApplyPolicy, policy, what="--policy"),
                meets=parse_choice(AverageBackend, backend, what="--backend") is not AverageBackend.CPU,
                anchor=anchor,
                max_anchor=max_anchor,
                overhead_target=overhead_target,
                max_batch_diff=max_batch_diff,
                max_overshoot=max_overshoot,
                progressive_dispatch=parse_switch(
                    "--progressive-dispatch", progressive_dispatch, default=policy != ApplyPolicy.SYNC
                ),
                partition_ratios=parse_ratios(partition_ratios),
                speed_hint=parse_speed_hint(speed_hint),
            ),
            average_ms=average_ms,
            stall_ms=stall_ms,
            jitter=jitter,
            latency_ms=latency_ms,
            slow_downs=tuple(parse_slow_down(text) for text in slow or ()),
            stalls=tuple(parse_stall(text) for text in stall or ()),
            deaths=tuple(parse_death(text) for text in die or ()),
            max_steps=max_steps,
            max_time_s=max_time_s,
            seed=seed,
        )
    except ConfigError as error:
        raise CliError(str(error)) from error
    _run(spec, backend, as_json=as_json)


def _run(spec: "SimulationSpec", backend: str, *, as_json: bool) -> None:
    from flodl_cli.simulation_output import print_json, print_tables, simulate_with_progress

    report, real_s = simulate_with_progress(spec)
    if as_json:
        print_json(spec, report, real_s)
    else:
        print_tables(spec, backend, report, real_s)
