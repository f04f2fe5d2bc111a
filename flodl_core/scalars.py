"""``record_scalar``: numbers of the user's own, averaged per epoch over the batches that recorded them."""

import threading
from typing import Any

from torch import Tensor

from flodl_core.arguments import check_text
from flodl_core.display_text import value_text
from flodl_core.errors import ConfigError, FlodlError
from flodl_core.messages import Scalars

_active = threading.local()


def record_scalar(name: str, value: float | Tensor) -> None:
    """Record a number for the batch under way; call it inside ``train_fn``.

    Args:
        name: What to call it in ``EpochMetrics.scalars``.
        value: A number or a tensor of one element; a tensor is read later, without forcing a device sync now.

    Raises:
        FlodlError: No batch is under way in this thread.
        ValueError: The name is no string, or the value no number.
    """
    collector: ScalarCollector | None = getattr(_active, "collector", None)
    if collector is None:
        raise FlodlError("record_scalar works only inside train_fn")
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"scalar {name!r} must have one element, not shape {tuple(value.shape)}")
        if value.is_complex():
            raise ConfigError(f"scalar {name!r} must be real, not {value.dtype}")
        value = value.detach()
    else:
        value = _number(name, value)
    collector.add(check_text("the name of a scalar", name), value)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"scalar {name!r} must be a number, not {value_text(value)}") from error


class ScalarCollector:
    """What one worker has recorded since its last report. Active in the thread that entered it."""

    def __init__(self) -> None:
        self._values: dict[str, list[float | Tensor]] = {}

    def add(self, name: str, value: float | Tensor) -> None:
        """Keep a value as it came."""
        self._values.setdefault(name, []).append(value)

    def take(self) -> Scalars:
        """Sums and counts of what was recorded, and start afresh."""
        if not self._values:
            return {}
        values, self._values = self._values, {}
        return {name: (sum(float(value) for value in kept), len(kept)) for name, kept in values.items()}

    def __enter__(self) -> "ScalarCollector":
        _active.collector = self
        return self

    def __exit__(self, *exc_info: object) -> None:
        _active.collector = None
