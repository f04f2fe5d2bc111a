"""The learning rate of one worker: lr = base x schedule(position) x scale."""

import math
from collections.abc import Callable

from torch import Tensor
from torch.optim import Optimizer

from flodl_core.display_text import value_text
from flodl_core.errors import ConfigError

Schedule = Callable[[int], float]
"""Position in the run, in batches of all ranks, to a factor of the base learning rate."""


def scale_for(world_size: int, ratio: float) -> float:
    """The linear scaling rule (Goyal et al. 2017): 1 + (world_size - 1) x ratio."""
    return 1.0 + (world_size - 1) * ratio


class LearningRate:
    """Owned by one worker.

    Args:
        optimizer: Whose groups are set; their learning rates as built are the base.
        scale: Factor on every group.
        schedule: The schedule, or None for a constant 1.
    """

    def __init__(self, optimizer: Optimizer, *, scale: float, schedule: Schedule | None) -> None:
        self._optimizer = optimizer
        self._bases = [float(group["lr"]) for group in optimizer.param_groups]
        self._scale = scale
        self._schedule = schedule
        self._position = 0
        self._is_stale = True

    @property
    def current(self) -> float:
        """Learning rate of the first group, as the next step uses it.

        Raises:
            ConfigError: The schedule gives something else than a factor.
        """
        return self._bases[0] * self._factor()

    def _factor(self) -> float:
        if self._schedule is None:
            return self._scale
        factor = self._schedule(self._position)
        try:
            is_factor = 0 <= factor < math.inf  # not of NaN
        except (TypeError, ValueError, RuntimeError):  # what cannot be compared, or is an array or tensor of several
            is_factor = False
        if not is_factor:
            raise ConfigError(
                f"the schedule gave {value_text(factor)} at position {self._position}: a factor of the learning rate"
                " must be a finite number at least 0"
            )
        return self._scale * float(factor)

    @property
    def has_schedule(self) -> bool:
        """Whether the position in the run matters."""
        return self._schedule is not None

    @property
    def position(self) -> int:
        """Where the schedule stands; never goes back."""
        return self._position

    def prepare(self, position: int) -> None:
        """Set the groups for the step at ``position``."""
        if self._schedule is None:
            if self._is_stale:
                self._apply()
            return
        self._position = max(self._position, position)
        self._apply()

    def _apply(self) -> None:
        factor = self._factor()
        for group, base in zip(self._optimizer.param_groups, self._bases, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(base * factor)
            else:
                group["lr"] = base * factor
        self._is_stale = False

    def set_base(self, lr: float) -> None:
        """Give every group this base learning rate."""
        self._bases = [lr] * len(self._bases)
        self._is_stale = True

    def multiply_base(self, factor: float) -> None:
        """Multiply every group's base learning rate."""
        self._bases = [base * factor for base in self._bases]
        self._is_stale = True

    def set_scale(self, scale: float) -> None:
        """Replace the scale that world size and ratio gave."""
        self._scale = scale
        self._is_stale = True

    def set_schedule(self, schedule: Schedule | None) -> None:
        """Replace the schedule."""
        self._schedule = schedule
        self._is_stale = True
