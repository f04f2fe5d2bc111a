"""What is known of an epoch once it has been trained."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMetrics:
    """One epoch of a run. Everything per rank has shape (world_size,).

    Attributes:
        epoch: The epoch, from 0.
        avg_loss: Mean loss over all samples; 0.0 where none was trained.
        epoch_ms: Time from the last sample of the epoch before to its own, in milliseconds. Epochs that end with one
            and the same sample, as tiny ones may, have an equal part of it each.
        scalars: What ``record_scalar`` collected: the ranks' means, weighted by their batches.
        per_rank: The means of those scalars by rank; a name that a rank never recorded is absent.
        per_rank_loss: Mean loss over a rank's samples; NaN where it trained none.
        per_rank_throughput: Samples per millisecond of busy time; 0.0 where there was none.
        per_rank_batch_share: Share of the epoch's batches, summing to 1 where there was any.
        per_rank_busy_ms: Time in forward, backward and step, and emulated slowness.
        devices: Device of each rank.
        lr: Learning rate at the end of the epoch.
        num_batches: Optimizer steps of all ranks.
        num_samples: Samples trained by all ranks.
        capacity_efficiency: How busy the devices were kept; see ``flodl_core.efficiency``.
        eval: What ``eval_fn`` returned for the averaged model; empty without one.
    """

    epoch: int
    avg_loss: float
    epoch_ms: float
    scalars: Mapping[str, float]
    per_rank: tuple[Mapping[str, float], ...]
    per_rank_loss: tuple[float, ...]
    per_rank_throughput: tuple[float, ...]
    per_rank_batch_share: tuple[float, ...]
    per_rank_busy_ms: tuple[float, ...]
    devices: tuple[str, ...]
    lr: float
    num_batches: int
    num_samples: int
    capacity_efficiency: float
    eval: Mapping[str, float]


@dataclass(slots=True)
class _RankTotals:
    num_batches: int = 0
    num_samples: int = 0
    busy_ms: float = 0.0
    loss_sum: float = 0.0
    scalars: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add_scalar(self, name: str, value_sum: float, count: int) -> None:
        old_sum, old_count = self.scalars.get(name, (0.0, 0))
        self.scalars[name] = (old_sum + value_sum, old_count + count)

    def scalar_means(self) -> dict[str, float]:
        return {name: _ratio(value_sum, count) for name, (value_sum, count) in self.scalars.items()}


class EpochTotals:
    """Adds up one epoch, report by report.

    Owner: the coordinator's thread.
    """

    __slots__ = ("_ranks", "num_samples")

    def __init__(self, world_size: int) -> None:
        """Start at zero for every rank.

        Raises:
            ValueError: ``world_size`` is below 1.
        """
        if world_size < 1:
            raise ValueError(f"world_size must be at least 1, not {world_size}")
        self._ranks = [_RankTotals() for _ in range(world_size)]
        self.num_samples = 0

    def add(
        self,
        rank: int,
        *,
        num_batches: int,
        num_samples: int,
        busy_ms: float,
        loss_sum: float,
        scalars: Mapping[str, tuple[float, int]],
    ) -> None:
        """Take in one report of a rank.

        Args:
            rank: Who reports.
            num_batches: Optimizer steps in the report.
            num_samples: Samples in them.
            busy_ms: Time that they took.
            loss_sum: Sum of the loss over the samples.
            scalars: Name to (sum, batches that recorded it).
        """
        self.num_samples += num_samples
        totals = self._ranks[rank]
        totals.num_batches += num_batches
        totals.num_samples += num_samples
        totals.busy_ms += busy_ms
        totals.loss_sum += loss_sum
        for name, (value_sum, count) in scalars.items():
            totals.add_scalar(name, value_sum, count)

    def metrics(
        self,
        *,
        epoch: int,
        epoch_ms: float,
        lr: float,
        devices: tuple[str, ...],
        capacity_efficiency: float,
        eval: Mapping[str, float],  # noqa: A002 - named like the field that it becomes
    ) -> EpochMetrics:
        """The epoch so far; the arguments are the fields of ``EpochMetrics`` that the totals do not hold."""
        ranks = self._ranks
        num_batches = sum(rank.num_batches for rank in ranks)
        return EpochMetrics(
            epoch=epoch,
            avg_loss=_ratio(sum(rank.loss_sum for rank in ranks), self.num_samples),
            epoch_ms=epoch_ms,
            scalars=self._weighted_scalars(),
            per_rank=tuple(rank.scalar_means() for rank in ranks),
            per_rank_loss=tuple(_ratio(rank.loss_sum, rank.num_samples, empty=math.nan) for rank in ranks),
            per_rank_throughput=tuple(_ratio(rank.num_samples, rank.busy_ms) for rank in ranks),
            per_rank_batch_share=tuple(_ratio(rank.num_batches, num_batches) for rank in ranks),
            per_rank_busy_ms=tuple(rank.busy_ms for rank in ranks),
            devices=devices,
            lr=lr,
            num_batches=num_batches,
            num_samples=self.num_samples,
            capacity_efficiency=capacity_efficiency,
            eval=eval,
        )

    def _weighted_scalars(self) -> dict[str, float]:
        names = sorted({name for rank in self._ranks for name in rank.scalars})
        return {name: self._weighted_scalar(name) for name in names}

    def _weighted_scalar(self, name: str) -> float:
        weighted, weight = 0.0, 0
        for rank in self._ranks:
            value_sum, count = rank.scalars.get(name, (0.0, 0))
            if count > 0:
                weighted += value_sum / count * rank.num_batches
                weight += rank.num_batches
        return _ratio(weighted, weight)


def _ratio(part: float, whole: float, *, empty: float = 0.0) -> float:
    return part / whole if whole > 0 else empty
