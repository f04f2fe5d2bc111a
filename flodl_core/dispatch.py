"""How many batches a rank takes from the pool at a time."""

import math


def chunk_batches(
    *,
    remaining_batches: int,
    rank_in_flight: int,
    total_in_flight: int,
    own_rate: float,
    total_rate: float,
    fastest_rate: float,
    round_batches: int,
) -> int:
    """Deal about a round's worth, and near the end only as much as lets all ranks finish together.

    If work could be cut at will, all ranks would finish after T = (remaining + in flight) / total rate, until when this
    rank could do ``want`` = T x own rate - its own in flight. It takes half of that at a time, since speeds are
    estimates. Of the last batches it takes one more if that is done by T plus one batch of the fastest rank (half of
    one, where the rank has something to do and may be asked again): that is about when another would have done it.
    Rounding ``want`` to the nearest instead leaves like ranks idle while one of them does all the leftovers.

    Args:
        remaining_batches: Batches left in the pool.
        rank_in_flight: Batches that the rank has been dealt and not finished.
        total_in_flight: Those of all ranks.
        own_rate: The rank's batches per millisecond.
        total_rate: Those of all ranks together.
        fastest_rate: Those of the fastest rank.
        round_batches: Batches of the rank in a round: the most it takes at a time.

    Returns:
        Batches to take now. 0 means that others finish them sooner. The fastest rank always takes at least one while
        any is left, so that the pool drains.

    Raises:
        ValueError: A rate is not positive, ``round_batches`` is below 1 or another count is negative.
    """
    if min(own_rate, total_rate, fastest_rate) <= 0:
        raise ValueError(f"rates must be positive, not own {own_rate}, total {total_rate}, fastest {fastest_rate}")
    if round_batches < 1 or min(remaining_batches, rank_in_flight, total_in_flight) < 0:
        raise ValueError(
            f"expected round_batches of at least 1 and the others of at least 0, not round_batches {round_batches},"
            f" remaining {remaining_batches}, rank_in_flight {rank_in_flight}, total_in_flight {total_in_flight}"
        )
    finish_ms = (remaining_batches + total_in_flight) / total_rate
    want = finish_ms * own_rate - rank_in_flight
    allowance = own_rate / fastest_rate * (0.5 if rank_in_flight else 1.0)
    takes_one = own_rate >= fastest_rate or want + allowance >= 1
    return min(max(math.floor(want / 2), int(takes_one)), round_batches, remaining_batches)
