"""Says, while a run goes on, that the database does not answer."""

from rich.console import Console

from flodl_core import DdpHandle, EpochMetrics
from flows.recording import RecordedRun


class RecordingNotice:
    """A watcher that prints one line the first time that a run is not recorded.

    Args:
        console: On standard error; the one that progress is drawn on.
        recorded: The run.
    """

    def __init__(self, console: Console, recorded: RecordedRun) -> None:
        self._console = console
        self._recorded = recorded
        self._has_said = False

    def started(self, handle: DdpHandle) -> None:
        """Nothing yet."""

    def looked(self, handle: DdpHandle) -> None:
        """Look whether the recorder is well."""
        failure = self._recorded.failure
        if failure is not None and not self._has_said:
            self._has_said = True
            text = f"flodl: warning: training goes on, but {failure}"
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def epoch_ended(self, metrics: EpochMetrics) -> None:
        """Nothing."""
