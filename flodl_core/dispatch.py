"""How many batches a rank takes from the pool at a time."""

from __future__ import annotations

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

    If work could be cut at will, all ranks would finish after T = (remaining + in flight) / total rate, and a rank
    could do T x own rate batches in that time. A batch that it can not quite finish by then is still its own if it is
    done by T plus one batch of the fastest rank, which is about when others would have done it: hence a slow rank's
    share is rounded down and a fast one's up.

    Args:
        remaining_batches: Batches left in the pool.
        rank_in_flight: Batches that the rank has been dealt and not finished.
        total_in_flight: Those of all ranks.
        own_rate: The rank's batches per millisecond.
        total_rate: Those of all ranks together.
        fastest_rate: Those of the fastest rank.
        round_batches: Batches of the rank in a round: the most it takes at a time, at least 1.

    Returns:
        Batches to take now. 0 means that others finish them sooner. The fastest rank always takes at least one while
        any is left, so that the pool drains.

    Raises:
        ValueError: A count or rate is out of range.
    """
    if not 0 < own_rate <= fastest_rate <= total_rate:
        raise ValueError(f"expected 0 < own {own_rate} <= fastest {fastest_rate} <= total rate {total_rate}")
    if round_batches < 1 or not 0 <= rank_in_flight <= total_in_flight or remaining_batches < 0:
        raise ValueError(
            f"expected round_batches {round_batches} >= 1, remaining_batches {remaining_batches} >= 0 and"
            f" 0 <= rank_in_flight {rank_in_flight} <= total_in_flight {total_in_flight}"
        )
    finish_ms = (remaining_batches + total_in_flight) / total_rate
    share = math.floor(finish_ms * own_rate - rank_in_flight + own_rate / fastest_rate)
    least = 1 if own_rate == fastest_rate else 0
    return min(max(share, least), round_batches, remaining_batches)
