"""Who trains which samples: chunks dealt to ranks as they need them, from epoch to epoch."""

import math
from collections.abc import Iterable, Mapping, Sequence

from flodl_core.chunk_pool import ChunkPool
from flodl_core.dispatch import chunk_batches
from flodl_core.messages import EpochPlan
from flodl_core.overshoot import OvershootLimit
from flodl_core.partition import whole_batch_sizes
from flodl_core.rank_speeds import RankSpeeds
from flodl_core.sliced_pool import SlicedPool

PROBE_BATCHES = 2
"""Batches in a chunk for a rank whose speed is not known yet."""
LOW_WATER_MS = 10.0
"""A rank gets its next chunk when less than this, or at most one batch, is left of what it has."""
CHUNK_MS = 20.0
"""Smallest worth of a chunk: with batches of 0.1 ms, a round's worth would be gone before the next could arrive."""


class Dealer:
    """Deals the samples of every epoch, each exactly once. Owned by the coordinator.

    The *current* epoch is the lowest of which a sample has not been trained. While it runs out, a rank may go on
    with the next, by at most the overshoot limit; and never further than one epoch beyond the lowest that is in no
    average yet. It never goes back to an epoch after samples of a later one: its ``epoch_fn`` has been called by then.

    Where an epoch is cut into slices beforehand, each rank is dealt its own slice alone.

    Args:
        ranks: Who takes part.
        epoch_size: Samples in an epoch, at least 1.
        batch_size: Samples in a full batch.
        num_epochs: Epochs in the run.
        overshoot: How far a rank may stream into the next epoch.
        is_progressive: Whether an epoch is dealt bit by bit; else each rank gets its slice whole, cut by speed when the
            epoch begins, and none streams into the next.
        ratios: Slices in these proportions instead, by rank.
        speed_hint: A slow rank, and how many times as fast all others are, until they are measured.
        max_batches: Batches that are dealt in the whole run, or None.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        *,
        epoch_size: int,
        batch_size: int,
        num_epochs: int,
        overshoot: OvershootLimit,
        is_progressive: bool = True,
        ratios: Sequence[float] | None = None,
        speed_hint: tuple[int, float] | None = None,
        max_batches: int | None = None,
    ) -> None:
        self._ranks = set(ranks)
        self._world_size = len(self._ranks)
        self._epoch_size = epoch_size
        self._batch_size = batch_size
        self._num_epochs = num_epochs
        self._overshoot = overshoot
        self._is_progressive = is_progressive
        self._ratios = ratios
        self._batches_left = max_batches
        slow_rank, ratio = speed_hint or (None, 1.0)
        self._speeds = RankSpeeds(self._ranks, slow_rank=slow_rank, ratio=ratio)
        self._pools: dict[int, ChunkPool | SlicedPool] = {}
        self._outstanding = dict.fromkeys(self._ranks, 0)
        self._total_outstanding = 0
        self._starved: set[int] = set()
        self._dealt_epoch = dict.fromkeys(self._ranks, -1)
        self._num_ahead = 0
        self.current_epoch = 0
        self.averaged_epoch = -1
        """The last epoch that is in an average."""

    # Speed

    def batch_ms(self, rank: int) -> float:
        """Milliseconds per full batch; 0 while unknown."""
        return self._speeds.batch_ms(rank)

    @property
    def all_measured(self) -> bool:
        """Whether every rank's speed is known."""
        return self._speeds.all_measured

    def set_batch_ms(self, rank: int, batch_ms: float) -> None:
        """Take a new estimate of a rank's speed, in milliseconds per full batch; 0 makes it unknown."""
        self._speeds.measure(rank, batch_ms)

    def set_all_batch_ms(self, batch_ms: Mapping[int, float]) -> None:
        """Take new estimates of many ranks' speeds."""
        self._speeds.measure_all(batch_ms)

    # Dealing

    def deal(self, rank: int, *, round_batches: int) -> list[EpochPlan]:
        """What the rank should get now, so that it does not run dry.

        Args:
            rank: Who.
            round_batches: The rank's batches in a round: the worth of a chunk.

        Returns:
            Slices for it, in order; none while it has enough, or where there is none for it (it is then *starved*).
        """
        self._starved.discard(rank)
        batch_ms = self._speeds.batch_ms(rank)
        low_water = max(1, math.ceil(LOW_WATER_MS / batch_ms)) if batch_ms > 0 else 1
        worth = max(round_batches, math.ceil(CHUNK_MS / batch_ms)) if batch_ms > 0 else PROBE_BATCHES
        plans: list[EpochPlan] = []
        while self._batches(self._outstanding[rank]) <= low_water:
            plan = self._next_plan(rank, worth)
            if plan is None:
                self._starved.add(rank)
                break
            plans.append(plan)
        return plans

    def _batches(self, num_samples: int) -> int:
        return -(-num_samples // self._batch_size)

    def _next_plan(self, rank: int, worth: int) -> EpochPlan | None:
        if self._batches_left == 0:
            return None
        last = min(self.current_epoch + self._is_progressive, self.averaged_epoch + 2, self._num_epochs - 1)
        first = max(self.current_epoch, self._dealt_epoch[rank])
        for epoch in range(first, last + 1):
            pool = self._pool(epoch)
            left = pool.remaining_for(rank)
            if left == 0:
                continue
            if epoch > self.current_epoch:
                # a slow rank's few batches may be more than its part of that epoch, which would then wait for it
                most = self._overshoot.limit - self._batches(pool.dispatched(rank))
                num_batches = min(most, worth if isinstance(pool, SlicedPool) else self._share(rank, pool, worth))
            elif isinstance(pool, SlicedPool):
                num_batches = worth if self._is_progressive else self._batches(left)
            else:
                num_batches = self._share(rank, pool, worth)
                if self._is_unknown(rank) or self._falls_to_whoever_asks():
                    num_batches = max(1, num_batches)
            if num_batches > 0:
                return self._take(pool, rank, epoch, num_batches)
        return None

    def _is_unknown(self, rank: int) -> bool:
        """Whether the rank has to be given something to be measured by, however slow it was said to be."""
        return self._speeds.batch_ms(rank) == 0 and self._outstanding[rank] == 0

    def _falls_to_whoever_asks(self) -> bool:
        """Whether the rank that would take what is left of the current epoch will not ask for it, and nobody else."""
        if self._num_ahead == len(self._ranks) - 1:
            return True
        fastest = self._speeds.fastest
        if fastest is None or self._total_outstanding > 0:
            return False
        # starved: it was refused for being slow, when another was thought to be faster
        return self._dealt_epoch[fastest] > self.current_epoch or fastest in self._starved

    def _pool(self, epoch: int) -> ChunkPool | SlicedPool:
        if epoch not in self._pools:
            self._pools[epoch] = self._make_pool(epoch)
        return self._pools[epoch]

    def _make_pool(self, epoch: int) -> ChunkPool | SlicedPool:
        if self._ratios is not None:
            return SlicedPool(whole_batch_sizes(self._ratios, self._epoch_size, self._batch_size))
        if self._is_progressive:
            return ChunkPool(epoch, self._epoch_size, self._world_size)
        rates = [self._speeds.rate(rank) if rank in self._ranks else 0.0 for rank in range(self._world_size)]
        return SlicedPool(whole_batch_sizes(rates, self._epoch_size, self._batch_size))

    def _share(self, rank: int, pool: ChunkPool, worth: int) -> int:
        """Batches of the current epoch for the rank; all that any rank has outstanding is in its way."""
        rank_in_flight = self._batches(self._outstanding[rank])
        return chunk_batches(
            remaining_batches=self._batches(pool.remaining),
            rank_in_flight=rank_in_flight,
            total_in_flight=max(rank_in_flight, self._batches(self._total_outstanding)),
            own_rate=self._speeds.rate(rank),
            total_rate=self._speeds.total_rate,
            fastest_rate=self._speeds.fastest_rate,
            round_batches=worth,
        )

    def _take(self, pool: ChunkPool | SlicedPool, rank: int, epoch: int, num_batches: int) -> EpochPlan:
        if self._batches_left is not None:
            num_batches = min(num_batches, self._batches_left)
        taken = pool.take(num_batches * self._batch_size, rank)
        assert taken is not None, "a pool with samples left deals some"
        offset, size = taken
        if self._batches_left is not None:
            self._batches_left -= self._batches(size)
        self._outstanding[rank] += size
        self._total_outstanding += size
        self._num_ahead += self._dealt_epoch[rank] <= self.current_epoch < epoch
        self._dealt_epoch[rank] = max(self._dealt_epoch[rank], epoch)
        return EpochPlan(epoch=epoch, offset=offset, size=size)

    def is_idle(self, rank: int) -> bool:
        """Whether the rank has done all that it was dealt and there is nothing more for it now."""
        return rank in self._starved and self._outstanding[rank] == 0

    @property
    def starved(self) -> tuple[int, ...]:
        """Ranks for which there was nothing when they last needed some, in rank order."""
        return tuple(sorted(self._starved))

    # Progress

    def complete(self, rank: int, epoch: int, num_samples: int) -> bool:
        """Enter trained samples.

        Returns:
            Whether the current epoch moved on: what was held back may be dealt now.
        """
        self._outstanding[rank] -= num_samples
        self._total_outstanding -= num_samples
        self._pools[epoch].complete(rank, num_samples)
        before = self.current_epoch
        while self.current_epoch in self._pools and self._pools[self.current_epoch].is_done:
            self.current_epoch += 1
            self._num_ahead = 0  # nobody is dealt more than one epoch ahead
        return self.current_epoch > before

    @property
    def is_exhausted(self) -> bool:
        """Whether all batches that the run may train have been dealt and trained."""
        return self._batches_left == 0 and self._total_outstanding == 0

    @property
    def current_epoch_done(self) -> int:
        """Samples of the current epoch that have been trained."""
        pool = self._pools.get(self.current_epoch)
        return 0 if pool is None else self._epoch_size - pool.remaining - pool.total_in_flight

    @property
    def has_unaveraged_epoch(self) -> bool:
        """Whether an epoch has been trained whole and is in no average yet."""
        return self.current_epoch > self.averaged_epoch + 1

    @property
    def open_epochs(self) -> range:
        """Epochs that may have begun and are in no average yet."""
        return range(self.averaged_epoch + 1, min(self.current_epoch + 1, self._num_epochs - 1) + 1)

    def averaged(self, epochs: Iterable[int]) -> None:
        """These epochs are in an average: their pools are closed."""
        for epoch in epochs:
            assert epoch == self.averaged_epoch + 1, "epochs are averaged in order"
            self.averaged_epoch = epoch
            del self._pools[epoch]

    def epochs_without_work(self, rank: int, epochs: Iterable[int]) -> list[EpochPlan]:
        """Empty plans for those of ``epochs`` that would otherwise not begin on the rank."""
        plans = [EpochPlan(epoch=epoch, offset=0, size=0) for epoch in epochs if epoch > self._dealt_epoch[rank]]
        if plans:
            self._dealt_epoch[rank] = plans[-1].epoch
        return plans

    def remove(self, rank: int) -> None:
        """The rank has left. What it was dealt and did not report is not dealt again."""
        self._speeds.remove(rank)
        self._num_ahead -= self._dealt_epoch[rank] > self.current_epoch
        self._ranks.discard(rank)
        self._starved.discard(rank)
