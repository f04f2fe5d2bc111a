"""How a Local SGD run is paced."""

from dataclasses import dataclass

from flodl_core.policies import ApplyPolicy

DIVERGENCE_THRESHOLD = 0.05
"""Relative distance from the mean above which rising drift holds the cadence where it is."""

MAX_SPEED_RATIO = 1e6
"""The most that ``speed_hint`` may say: counts of batches follow from it, and must stay numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """How a Local SGD run is paced; the builder's methods of the same names say what each means.

    ``divergence_threshold`` None is ``no_divergence_guard``.
    """

    policy: ApplyPolicy = ApplyPolicy.CADENCE
    meets: bool = False
    anchor: int = 10
    max_anchor: int = 200
    overhead_target: float = 0.03
    max_batch_diff: int | None = None
    max_overshoot: int | None = None
    snapshot_timeout_s: float = 5.0
    divergence_threshold: float | None = DIVERGENCE_THRESHOLD
    progressive_dispatch: bool = True
    partition_ratios: tuple[float, ...] | None = None
    speed_hint: tuple[int, float] | None = None
