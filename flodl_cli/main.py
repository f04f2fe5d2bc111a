"""The ``flodl`` command: its options as a whole, and the one place where errors become lines and exit codes."""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from flodl_cli.bench import bench
from flodl_cli.dashboard import dashboard
from flodl_cli.db import db
from flodl_cli.demo import demo
from flodl_cli.failures import RUN_FAILED, SIGNAL_BASE, Interrupted, explain
from flodl_cli.recipes import recipes
from flodl_cli.runs import runs
from flodl_cli.show import show
from flodl_cli.simulate import simulate
from flodl_cli.state import state
from flodl_cli.train import train
from flodl_cli.up import up

app = typer.Typer(
    name="flodl",
    help="Train a PyTorch model on unlike devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(train)
app.command()(up)
app.command()(recipes)
app.command()(runs)
app.command()(show)
app.command()(state)
app.command()(simulate)
# what follows the name is the benchmark's own, --help included
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})(bench)
app.add_typer(db)
app.command()(dashboard)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"flodl {version('flodl')}")
        raise typer.Exit


@app.callback()
def _flodl(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Instead of the process's own.

    Returns:
        The exit code: 0 done, 1 the run failed, 2 the caller can mend it, 130 or 143 interrupted.
    """
    try:
        code = app(args=arguments, prog_name="flodl", standalone_mode=False)
        sys.stdout.flush()  # here a reader that has gone can be dealt with; at interpreter exit it cannot
    except (KeyboardInterrupt, Interrupted) as interruption:
        signum = interruption.signum if isinstance(interruption, Interrupted) else 2
        print("flodl: stopped before training began", file=sys.stderr)
        return SIGNAL_BASE + signum
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return RUN_FAILED
    except Exception as error:
        if os.environ.get("FLODL_DEBUG"):
            raise
        line, exit_code = explain(error)
        if line:  # empty where help was printed, for want of a command
            print(f"flodl: error: {line}", file=sys.stderr)
        return exit_code
    return code if isinstance(code, int) else 0
