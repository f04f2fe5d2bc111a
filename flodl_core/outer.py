"""The outer optimizer: what becomes of the mean of the replicas before they take it."""

import math
from dataclasses import dataclass

from flodl_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterOptions:
    """SGD with momentum on the displacement of the mean from the last consensus (DiLoCo, Douillard et al. 2023).

    Attributes:
        lr: Factor of the step, above 0.
        momentum: From 0 to below 1.
        nesterov: Whether to look ahead; needs momentum.
    """

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"the outer lr must be a number above 0, not {self.lr!r}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"the outer momentum must be from 0 to below 1, not {self.momentum!r}")
        if self.nesterov and self.momentum == 0:
            raise ConfigError("nesterov needs an outer momentum above 0: pass nesterov=False")
