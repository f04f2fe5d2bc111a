"""What a worker under the policy sync does next, without tensors, threads or clocks.

Round k of an epoch takes the next ``world_size x batch_size`` samples of its permutation, split evenly or by given
ratios; so every rank knows everybody's part, and all ranks do the same number of rounds. A plan is a stretch of whole
rounds, or of what is left of the epoch. A stop reaches all of them with the result of one
round, so that none waits for another that has ended.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from flodl_core.messages import EpochPlan, Shutdown, StartEpoch, ToWorker
from flodl_core.partition import equal_sizes, ratio_to_sizes
from flodl_core.worker_logic import BeginEpoch, Exit, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncBatch:
    """Compute gradients of these samples, average them with the other ranks', step; then call ``stepped``.

    Attributes:
        round: Number of the round in the run.
        epoch: The epoch.
        offset: First of the rank's samples in the epoch's permutation.
        size: The rank's samples; with 0 it takes part with weight 0.
        is_last: Whether the epoch ends with this round.
    """

    round: int
    epoch: int
    offset: int
    size: int
    is_last: bool


def round_sizes(num_samples: int, *, world_size: int, ratios: Sequence[float] | None) -> tuple[int, ...]:
    """Split the samples of a round.

    Args:
        num_samples: Samples of the round, at least 0.
        world_size: Number of ranks.
        ratios: Share of each rank, shape (world_size,), or None for equal ones.

    Returns:
        Samples by rank, shape (world_size,).
    """
    return equal_sizes(world_size, num_samples) if ratios is None else ratio_to_sizes(ratios, num_samples)


def _num_active(sizes: Sequence[int]) -> int:
    return sum(size > 0 for size in sizes)


class SyncLogic:
    """Owned by one worker.

    Args:
        rank: The worker's rank.
        world_size: Number of ranks.
        batch_size: Samples in a rank's full batch.
        epoch_size: Samples in an epoch.
        ratios: Share of each rank in a round, or None for equal ones.
    """

    def __init__(
        self, *, rank: int, world_size: int, batch_size: int, epoch_size: int, ratios: Sequence[float] | None = None
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._epoch_size = epoch_size
        self._ratios = ratios
        self._round_size = world_size * batch_size
        self._full_sizes = self._split(self._round_size)
        self._full_before = sum(self._full_sizes[:rank])
        self._full_active = _num_active(self._full_sizes)
        self._queue: deque[EpochPlan] = deque()
        self._done = 0
        self._round = 0
        self._begun_epoch = -1
        self._shutdown: Shutdown | None = None
        self._is_stopped = False

    def handle(self, message: ToWorker) -> None:
        """Take a message of the coordinator other than ``Update``, which answers a gradient."""
        match message:
            case StartEpoch():
                self._queue.append(message.plan)
            case Shutdown():
                self._shutdown = message
            case _:
                raise AssertionError(f"{type(message).__name__} has no meaning under sync")

    def next_action(self) -> SyncBatch | BeginEpoch | Wait | Exit:
        """What to do now."""
        # alone, nobody waits for this rank: it may end at once; else all end in the round whose result said so
        may_end = self._is_stopped or not self._queue or self._world_size == 1
        if self._shutdown is not None and may_end:
            return Exit(hand_in=self._shutdown.hand_in)
        if self._is_stopped or not self._queue:
            return Wait()
        plan = self._queue[0]
        if plan.epoch > self._begun_epoch:
            self._begun_epoch = plan.epoch
            return BeginEpoch(epoch=plan.epoch)
        return self._batch(plan, self._done)

    def _split(self, num_samples: int) -> tuple[int, ...]:
        return round_sizes(num_samples, world_size=self._world_size, ratios=self._ratios)

    @property
    def full_size(self) -> int:
        """The rank's samples in a full round."""
        return self._full_sizes[self._rank]

    @property
    def slice_left(self) -> int:
        """Samples of this rank from the current batch on that lie side by side; 0 where others' lie between."""
        return self._queue[0].size - self._done if self._world_size == 1 else 0

    @property
    def next_batch(self) -> SyncBatch | None:
        """The batch after the current one, for reading ahead; None where it is of another epoch or not dealt yet."""
        after = self._done + self._round_size
        if not self._queue:
            return None
        if after < self._queue[0].size:
            return self._batch(self._queue[0], after)
        is_dealt = len(self._queue) > 1 and self._queue[1].epoch == self._queue[0].epoch
        return self._batch(self._queue[1], 0) if is_dealt else None

    def _batch(self, plan: EpochPlan, done: int) -> SyncBatch:
        start = plan.offset + done
        if plan.size - done >= self._round_size:
            before, size = self._full_before, self._full_sizes[self._rank]
        else:
            sizes = self._split(plan.size - done)
            before, size = sum(sizes[: self._rank]), sizes[self._rank]
        return SyncBatch(
            round=self._round,
            epoch=plan.epoch,
            offset=start + before,
            size=size,
            is_last=start + self._round_size >= self._epoch_size,
        )

    def active_ranks(self) -> int:
        """How many ranks have samples in the current round: what it adds to the global step."""
        left = self._queue[0].size - self._done
        return self._full_active if left >= self._round_size else _num_active(self._split(left))

    def stepped(self, *, stop: bool) -> None:
        """The round's step has been taken.

        Args:
            stop: The round's result told all ranks to end.
        """
        self._round += 1
        self._is_stopped = stop
        self._done += self._round_size
        if self._done >= self._queue[0].size:
            self._queue.popleft()
            self._done = 0

    def aborted(self) -> None:
        """The round's average will not come: the rank ends with what it has."""
        self._is_stopped = True
