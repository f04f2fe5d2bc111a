"""How busy the devices were kept."""

from collections.abc import Sequence


def capacity_efficiency(samples: Sequence[int], busy_ms: Sequence[float], wall_ms: float) -> float:
    """Throughput reached, as a share of what the ranks would reach if none of them ever waited.

    samples / (wall x sum over ranks of samples_r / busy_r): a rank's own rate while busy is taken as what it can do.
    It sees every wait: for averages, for slower ranks, for data, at the start and the end. It cannot see workers that
    slow each other down, since that lowers the rates it compares with; and it may pass 1 a little where busy time was
    measured on another clock than wall time.

    Args:
        samples: Samples trained by rank, shape (world_size,).
        busy_ms: Time in forward, backward, step and emulated slowness by rank, shape (world_size,).
        wall_ms: First batch's start to last batch's end, waits included.

    Returns:
        The efficiency, 0.0 where nothing was trained or no time passed. A rank without work counts for nothing: it adds
        no samples, and its rate is unknown.

    Raises:
        ValueError: ``samples`` and ``busy_ms`` differ in length.
    """
    worked = [(num, busy) for num, busy in zip(samples, busy_ms, strict=True) if num > 0 and busy > 0]
    capacity = wall_ms * sum(num / busy for num, busy in worked)
    return sum(num for num, _ in worked) / capacity if capacity > 0 else 0.0
