"""``flodl recipes``."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from flodl_cli.failures import CliError
from flodl_store.plain_json import dump_json


def recipes(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list on standard output.")] = False,
) -> None:
    """List the recipes that are registered."""
    from flows.errors import RecipeError  # torch comes with it, and takes a while to import
    from flows.recipes import list_recipes

    try:
        found = list_recipes()
    except RecipeError as error:
        raise CliError(str(error)) from error
    rows = [
        {
            "name": name,
            "description": recipe.description,
            "epochs": recipe.epochs,
            "batch_size": recipe.batch_size,
            "lr": recipe.lr,
        }
        for name, recipe in found
    ]
    if as_json:
        print(dump_json(rows))
        return
    table = Table("recipe", "what it trains", box=None, pad_edge=False)
    for column in ("epochs", "batch size", "lr"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{value:g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)
