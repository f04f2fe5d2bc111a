"""A line when a run starts and one for each epoch."""

from rich.console import Console

from flodl_cli import figures
from flodl_core import DdpHandle, EpochMetrics
from flodl_store.params import RunParams


class ProgressLines:
    """Prints plain lines, complete in themselves, for logs and pipes; the bar of a terminal stands below them."""

    def __init__(self, console: Console, params: RunParams, run_id: str) -> None:
        """Print to ``console`` about the run of that name."""
        self._console = console
        self._params = params
        self._run_id = run_id
        self._handle: DdpHandle | None = None
        self._elapsed_s = 0.0

    def started(self, handle: DdpHandle) -> None:
        """Say what is trained, on what, and how."""
        self._handle = handle
        devices = ", ".join(str(device) for device in handle.devices)
        how = "alone" if handle.world_size < 2 else f"{self._params.policy}, {handle.training_meta['backend']}"
        self._print(f"run {self._run_id}: {self._params.recipe} on {devices} ({how})")

    def looked(self, handle: DdpHandle) -> None:
        """Nothing: only an epoch is worth a line."""

    def epoch_ended(self, metrics: EpochMetrics) -> None:
        """One line with what an epoch brought."""
        assert self._handle is not None
        self._elapsed_s += metrics.epoch_ms / 1000
        num_done, num_epochs = metrics.epoch + 1, self._params.epochs or 0
        left_s = self._elapsed_s / num_done * (num_epochs - num_done)
        rates = " + ".join(figures.rate(per_ms * 1000) for per_ms in metrics.per_rank_throughput)
        parts = [
            f"epoch {num_done}/{num_epochs}",
            f"loss {figures.loss(metrics.avg_loss)}",
            *(f"eval {name} {figures.loss(value)}" for name, value in metrics.eval.items()),
            rates,
            f"{self._handle.progress().num_syncs} averages",
            f"efficiency {figures.percent(metrics.capacity_efficiency)}",
            figures.duration(metrics.epoch_ms / 1000),
            *([f"ETA {figures.duration(left_s)}"] if num_done < num_epochs else []),
        ]
        self._print("  ".join(parts))

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
