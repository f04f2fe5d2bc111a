"""What an average means, apart from its arithmetic: who counts, with which weight, and what it completes.

One definition for every backend: the rendezvous of an all-reduce, the coordinator's averaging thread, and the tests.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flodl_core.messages import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The terms of one average.

    Attributes:
        weights: Samples by rank, in rank order, of the finite ranks that trained any. Where none did, the consensus
            stays: the lowest finite rank stands for it, with weight 1.
        num_samples: Samples by rank as entered, of the finite ranks.
        excluded: Ranks left out for not being finite, in rank order.
        discarded_samples: What those had trained since their previous entry.
        global_step: Batches trained by all ranks.
        epochs: Epochs of which every sample is in, ascending.
        most_work: The finite rank that trained most, the lowest of equals: integer buffers come from it.
    """

    weights: dict[int, int]
    num_samples: dict[int, int]
    excluded: tuple[int, ...]
    discarded_samples: int
    global_step: int
    epochs: tuple[int, ...]
    most_work: int

    @property
    def leader(self) -> int:
        """The rank that speaks for all in sync: the lowest that has something to report."""
        return min(self.weights)


def tally(entries: Collection[Entry], *, epochs: Sequence[int], epoch_size: int) -> Tally | None:
    """Settle the terms of an average.

    Args:
        entries: What the ranks enter with, at least one, all of one round.
        epochs: Epochs that no average has completed yet, ascending; as many as may have begun.
        epoch_size: Samples in an epoch.

    Returns:
        The terms, or None when no rank is finite.
    """
    ordered = sorted(entries, key=lambda entry: entry.rank)
    finite = [entry for entry in ordered if entry.is_finite]
    if not finite:
        return None
    num_samples = {entry.rank: entry.num_samples for entry in finite}
    weights = {rank: count for rank, count in num_samples.items() if count > 0}
    return Tally(
        weights=weights or {finite[0].rank: 1},
        num_samples=num_samples,
        excluded=tuple(entry.rank for entry in ordered if not entry.is_finite),
        discarded_samples=sum(entry.num_samples for entry in ordered if not entry.is_finite),
        global_step=sum(entry.total_batches for entry in ordered),
        epochs=_completed(ordered, epochs, epoch_size),
        most_work=max(finite, key=lambda entry: (entry.num_samples, -entry.rank)).rank,
    )


def _completed(entries: Sequence[Entry], epochs: Sequence[int], epoch_size: int) -> tuple[int, ...]:
    done: list[int] = []
    for epoch in epochs:
        if sum(entry.completed.get(epoch, 0) for entry in entries) < epoch_size:
            break
        done.append(epoch)
    return tuple(done)
