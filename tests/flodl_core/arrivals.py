"""Forces the order in which the ranks' gradients arrive at each average under sync."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from flodl_core.meetings import Contribution, GradientMeeting, MeetingResult
from flodl_core.sync_coordinator import SyncCoordinator


@contextmanager
def arriving(order: Sequence[int]) -> Iterator[None]:
    """Over either backend, whoever averages finds the ranks in this order, as if they had come in it."""
    meet, compute = GradientMeeting.__call__, SyncCoordinator._maybe_compute

    def in_order(by_rank: Mapping[int, Any]) -> dict[int, Any]:
        return {rank: by_rank[rank] for rank in order if rank in by_rank}

    def meet_in_order(
        meeting: GradientMeeting, contributions: Mapping[int, Contribution], waited_s: Mapping[int, float]
    ) -> MeetingResult:
        return meet(meeting, in_order(contributions), waited_s)

    def compute_in_order(coordinator: SyncCoordinator) -> None:
        coordinator._snapshots = in_order(coordinator._snapshots)
        compute(coordinator)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientMeeting, "__call__", meet_in_order)
        patch.setattr(SyncCoordinator, "_maybe_compute", compute_in_order)
        yield
