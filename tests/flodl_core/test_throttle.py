from __future__ import annotations

import pytest

from flodl_core.throttle import is_too_far_ahead


@pytest.mark.parametrize(
    ("batches", "slowest", "limit", "too_far"),
    [(8, 5, 3, False), (9, 5, 3, True), (5, 5, 0, False), (6, 5, 0, True), (10**6, 0, None, False)],
)
def test_rank_waits_once_it_is_more_than_the_limit_ahead(
    batches: int, slowest: int, limit: int | None, too_far: bool
) -> None:
    assert is_too_far_ahead(batches, slowest, limit) is too_far
