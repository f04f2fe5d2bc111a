"""How far a run is: the figures that its row holds."""

from dataclasses import asdict, dataclass
from typing import Any

from flodl_store.nonfinite import set_aside

_FLOATS = ("avg_loss", "capacity_efficiency", "wall_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """How far a run is.

    Attributes:
        epoch: Epochs trained to their end.
        avg_loss: Mean training loss of the last of them, or None; may be NaN.
        num_samples: Samples trained by all ranks.
        num_batches: Optimizer steps of all ranks.
        num_syncs: Averages.
        capacity_efficiency: How busy the devices were kept.
        anchor: Batches that the slowest rank does between two averages, or None.
        global_step: Batches trained by all ranks.
        wall_s: From the first batch's start to the last one's end.
    """

    epoch: int
    avg_loss: float | None
    num_samples: int
    num_batches: int
    num_syncs: int
    capacity_efficiency: float | None
    anchor: int | None
    global_step: int
    wall_s: float | None


def progress_columns(progress: RunProgress | None) -> dict[str, Any]:
    """The columns of ``run`` that hold ``progress``; none where it is None."""
    if progress is None:
        return {}
    values = asdict(progress)
    set_aside(values, _FLOATS)
    return values
