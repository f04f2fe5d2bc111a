"""``flodl train``: its options."""

from pathlib import Path
from typing import Annotated

import typer

from flodl_cli.parameters import build_params, split_list

Recipe = Annotated[str, typer.Argument(help="Short name (see flodl recipes) or package.module:attribute.")]
Devices = Annotated[str | None, typer.Option(help="A worker each, with commas between: cpu,cuda:0,cpu@2.5")]
Policy = Annotated[str | None, typer.Option(help="When the replicas are averaged: sync, cadence or async.")]
Backend = Annotated[str | None, typer.Option(help="How they are averaged: nccl, gloo or cpu.")]
Epochs = Annotated[int | None, typer.Option(help="Times that every sample is trained.")]
BatchSize = Annotated[int | None, typer.Option(help="Samples in a worker's batch.")]
Seed = Annotated[int | None, typer.Option(help="Of the initial parameters and of the order of the data.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("-p", "--param", metavar="KEY=VALUE", help="Any parameter; the value is JSON or a bare word."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on standard output.")]


def train(
    recipe: Recipe,
    devices: Devices = None,
    policy: Policy = None,
    backend: Backend = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    param: Assignments = None,
    as_json: AsJson = False,
) -> int:
    """Train a recipe; its state and log go to $FLODL_HOME/artifacts/<run id>/."""
    options = {
        "recipe": recipe,
        "devices": None if devices is None else split_list(devices),
        "policy": policy,
        "backend": backend,
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
    }
    params = build_params(options, param or [])
    from flodl_cli.run_training import run_training  # torch comes with it, and takes a while to import

    return run_training(params, started_in=Path.cwd(), as_json=as_json)
