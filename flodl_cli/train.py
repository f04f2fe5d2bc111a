"""``flodl train``: its options."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flodl_cli.parameters import LIST_PARAMETERS, build_params, split_list
from flodl_cli.train_options import takes_params_as_options

Recipe = Annotated[str, typer.Argument(help="Short name (see flodl recipes) or package.module:attribute.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("-p", "--param", metavar="KEY=VALUE", help="Any parameter; the value is JSON or a bare word."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on standard output.")]


@takes_params_as_options
def train(recipe: Recipe, param: Assignments = None, as_json: AsJson = False, **options: Any) -> int:
    """Train a recipe; its state and log go to $FLODL_HOME/artifacts/<run id>/."""
    for name in LIST_PARAMETERS:
        if options[name] is not None:
            options[name] = split_list(options[name])
    params = build_params({"recipe": recipe, **options}, param or [])
    from flodl_cli.run_training import run_training  # torch comes with it, and takes a while to import

    return run_training(params, started_in=Path.cwd(), as_json=as_json)
