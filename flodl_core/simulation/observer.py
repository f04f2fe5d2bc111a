"""A seat from which a test sees what happens in a simulation."""

from flodl_core.events import Event
from flodl_core.messages import ToCoordinator, ToWorker


class Observer:
    """Is told of everything and does nothing: override what is of interest. It must not change the run."""

    def on_batch(self, *, rank: int, epoch: int, offset: int, size: int, busy_ms: float, end_s: float) -> None:
        """A rank has trained a batch: a slice of the epoch's permutation."""

    def on_epoch_begun(self, *, rank: int, epoch: int) -> None:
        """A rank has called ``epoch_fn``."""

    def on_event(self, event: Event) -> None:
        """The coordinator told the run's owner."""

    def on_received(self, message: ToCoordinator, *, now_s: float) -> None:
        """The coordinator takes a message."""

    def on_delivered(self, rank: int, message: ToWorker, *, now_s: float) -> None:
        """A worker's inbox takes a message."""
