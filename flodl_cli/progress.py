"""What is seen on standard error while a run goes on: a bar on a terminal, a line an epoch elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from flodl_cli.live_progress import LiveProgress
from flodl_cli.progress_lines import ProgressLines
from flodl_store.params import RunParams
from flows.training import Watcher


@contextmanager
def show_progress(
    console: Console, params: RunParams, run_id: str, is_stopping: Callable[[], bool]
) -> Iterator[Watcher]:
    """A watcher that shows the run on ``console`` while the block runs.

    Args:
        console: On standard error.
        params: Of the run, the recipe's defaults filled in.
        run_id: The run's name.
        is_stopping: Says whether the run was told to end.
    """
    lines = ProgressLines(console, params, run_id)
    if not console.is_terminal:
        yield lines
        return
    with LiveProgress(console, lines, is_stopping) as live:
        yield live
