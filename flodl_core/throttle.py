"""When a rank has to wait for the next average because it runs away from the slowest."""


def is_too_far_ahead(batches_in_round: int, slowest_in_round: int, max_batch_diff: int | None) -> bool:
    """Whether a rank is more than ``max_batch_diff`` batches ahead of the slowest.

    Args:
        batches_in_round: Batches that the rank has done since the last average.
        slowest_in_round: Those of the rank that has done least.
        max_batch_diff: The limit, or None for none.
    """
    return max_batch_diff is not None and batches_in_round - slowest_in_round > max_batch_diff
