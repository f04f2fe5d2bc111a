"""The bar on a terminal."""

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flodl_cli import figures
from flodl_cli.progress_lines import ProgressLines
from flodl_core import DdpHandle, EpochMetrics, Progress


class LiveProgress:
    """A bar with a line of figures below it, redrawn when the run is looked at; epochs scroll by above.

    Owner: the thread that trains; there is no thread of its own.
    """

    def __init__(self, console: Console, lines: ProgressLines, is_stopping: Callable[[], bool]) -> None:
        """Draw on ``console``, with ``lines`` above the bar; ``is_stopping`` says whether the run was told to end."""
        self._is_stopping = is_stopping
        self._lines = lines
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._begun_s = time.monotonic()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def started(self, handle: DdpHandle) -> None:
        """Start the clock and draw an empty bar."""
        self._begun_s = time.monotonic()
        self._lines.started(handle)
        self.looked(handle)

    def looked(self, handle: DdpHandle) -> None:
        """Redraw."""
        elapsed_s = time.monotonic() - self._begun_s
        self._live.update(draw_progress(handle.progress(), elapsed_s, stopping=self._is_stopping()), refresh=True)

    def epoch_ended(self, metrics: EpochMetrics) -> None:
        """Print the epoch's line above the bar."""
        self._lines.epoch_ended(metrics)


def draw_progress(progress: Progress, elapsed_s: float, *, stopping: bool) -> Group:
    """The bar and the figures for one moment.

    Args:
        progress: The run at that moment.
        elapsed_s: Since it started.
        stopping: Whether it was told to.
    """
    whole = progress.num_epochs * progress.epoch_size
    share = min(1.0, progress.totals.num_samples / whole)
    epoch = min(progress.epoch + 1, progress.num_epochs)
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        f"epoch {epoch}/{progress.num_epochs}",
        ProgressBar(total=1.0, completed=share, width=30),
        f"{share:4.0%}",
        figures.duration(elapsed_s),
        "stopping" if stopping else f"ETA {eta(share, elapsed_s)}",
    )
    return Group(bar, Text(_figures(progress), overflow="ellipsis", no_wrap=True))


def eta(share: float, elapsed_s: float) -> str:
    """Time left when ``share`` of the work, from 0 to 1, took ``elapsed_s``; a dash while there is nothing to go by."""
    return figures.duration(elapsed_s * (1 - share) / share) if share > 0 else "-"


def _figures(progress: Progress) -> str:
    rates = "  ".join(f"rank {rank} {figures.rate(value)}" for rank, value in enumerate(progress.rank_speeds))
    parts = [
        f"loss {figures.loss(None if math.isnan(progress.loss) else progress.loss)}",
        rates,
        f"{progress.num_syncs} averages",
        f"efficiency {figures.percent(progress.totals.capacity_efficiency)}",
    ]
    return "  ".join(parts)
