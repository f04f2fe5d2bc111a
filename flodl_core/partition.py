"""How the samples of an epoch are split between ranks."""

import math
import statistics
from collections.abc import Sequence


def equal_sizes(world_size: int, total: int) -> tuple[int, ...]:
    """Split evenly; the first ranks get one more where it does not divide.

    Args:
        world_size: Ranks, at least 1.
        total: Samples to split, at least 0.

    Returns:
        Samples per rank, shape (world_size,), summing to ``total``.

    Raises:
        ValueError: ``world_size`` is below 1 or ``total`` negative.
    """
    _check_split(world_size, total)
    size, rest = divmod(total, world_size)
    return tuple(size + (rank < rest) for rank in range(world_size))


def ratio_to_sizes(ratios: Sequence[float], total: int) -> tuple[int, ...]:
    """Split in proportion to ``ratios``, which need not sum to 1; evenly where all of them are 0.

    Shares are rounded down; what is left goes one by one to the ranks with the largest ratios.

    Args:
        ratios: Share of each rank, shape (world_size,), finite and at least 0.
        total: Samples to split, at least 0.

    Returns:
        Samples per rank, shape (world_size,), summing to ``total``.

    Raises:
        ValueError: There is no ratio, one of them is negative or not finite, or ``total`` is negative.
    """
    _check_split(len(ratios), total)
    if not all(math.isfinite(ratio) and ratio >= 0 for ratio in ratios):
        raise ValueError(f"ratios must be finite and at least 0, not {list(ratios)}")
    ratio_sum = sum(ratios)
    if math.isinf(ratio_sum):  # of finite ones: each by itself is fine
        ratios = [ratio / max(ratios) for ratio in ratios]
        ratio_sum = sum(ratios)
    if ratio_sum == 0:
        return equal_sizes(len(ratios), total)
    sizes = [math.floor(total * (ratio / ratio_sum)) for ratio in ratios]
    largest_first = sorted(range(len(ratios)), key=lambda rank: (-ratios[rank], rank))
    for rank in largest_first[: total - sum(sizes)]:
        sizes[rank] += 1
    return tuple(sizes)


def throughput_sizes(ms_per_batch: Sequence[float], total: int) -> tuple[int, ...]:
    """Split so that all ranks finish together.

    A rank that was not measured yet (0 ms) is taken to be as fast as the median of those that were; where none was,
    the split is even.

    Args:
        ms_per_batch: Milliseconds per batch by rank, shape (world_size,), finite and at least 0.
        total: Samples to split, at least 0.

    Returns:
        Samples per rank, shape (world_size,), summing to ``total``.

    Raises:
        ValueError: There is no rank, a time is negative or not finite, or ``total`` is negative.
    """
    if not all(math.isfinite(ms) and ms >= 0 for ms in ms_per_batch):
        raise ValueError(f"ms_per_batch must be finite and at least 0, not {list(ms_per_batch)}")
    measured = [ms for ms in ms_per_batch if ms > 0]
    if not measured:
        return equal_sizes(len(ms_per_batch), total)
    median = statistics.median(measured)
    # The floor is the reference's, and keeps 1 / ms finite.
    return ratio_to_sizes([1 / max(ms or median, 0.001) for ms in ms_per_batch], total)


def whole_batch_sizes(rates: Sequence[float], total: int, batch_size: int) -> tuple[int, ...]:
    """Split in proportion to rates so that every rank but one gets whole batches.

    Args:
        rates: Batches per unit of time by rank, shape (world_size,), finite and at least 0.
        total: Samples to split, at least 0.
        batch_size: Samples in a full batch, at least 1.

    Returns:
        Samples per rank, shape (world_size,), summing to ``total``; the smaller batch, where there is one, is the last
        of the last rank that has any.

    Raises:
        ValueError: As ``ratio_to_sizes``, or ``batch_size`` is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    sizes = [count * batch_size for count in ratio_to_sizes(rates, -(-total // batch_size))]
    last = max((rank for rank, size in enumerate(sizes) if size > 0), default=0)
    sizes[last] -= sum(sizes) - total
    return tuple(sizes)


def _check_split(world_size: int, total: int) -> None:
    if world_size < 1:
        raise ValueError(f"expected at least 1 rank, not {world_size}")
    if total < 0:
        raise ValueError(f"total must be at least 0, not {total}")
