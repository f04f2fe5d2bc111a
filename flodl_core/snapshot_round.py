"""The average through the CPU that is under way: Idle -> Collecting -> Computing -> Idle."""

import heapq
from collections.abc import Mapping
from enum import Enum, auto

from flodl_core.messages import Snapshot

MOST_DOUBLINGS = 20
"""Of patience: beyond it the number would only get silly."""


class Phase(Enum):
    """Where an average through the CPU stands."""

    IDLE = auto()
    COLLECTING = auto()
    COMPUTING = auto()


class SnapshotRound:
    """Owned by the coordinator. At most one average is under way."""

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self.round = -1
        self._limits_s: dict[int, float] = {}
        self._soonest: list[tuple[float, int]] = []
        self._snapshots: dict[int, Snapshot] = {}
        self._is_short = False
        self._num_short = 0

    @property
    def patience(self) -> int:
        """Times the usual limit that ranks get: it doubles with each average in a row that went on without a late one.

        An epoch ends with an average that holds every rank. With limits that stayed below what snapshots take, there
        might never be one, and the run would not end.
        """
        return 1 << min(self._num_short, MOST_DOUBLINGS)

    @property
    def snapshots(self) -> Mapping[int, Snapshot]:
        """What has been handed in, by rank."""
        return self._snapshots

    @property
    def next_limit_s(self) -> float | None:
        """When the first rank that is still awaited will be late; None where none can be."""
        if self.phase is not Phase.COLLECTING:
            return None
        soonest = self._soonest
        # asked for after each message: what no longer holds is dropped from the heap once, instead of looking at all
        while soonest and self._limits_s.get(soonest[0][1]) != soonest[0][0]:
            heapq.heappop(soonest)
        return soonest[0][0] if soonest and soonest[0][0] != float("inf") else None

    def collect(self, round_: int, limits_s: Mapping[int, float]) -> None:
        """Await snapshots of these ranks, each until its limit; infinity for a rank that has none."""
        assert self.phase is Phase.IDLE, "never two averages at once"
        self.phase, self.round = Phase.COLLECTING, round_
        self._limits_s, self._snapshots = dict(limits_s), {}
        self._is_short = False
        self._soonest = sorted((limit_s, rank) for rank, limit_s in limits_s.items())  # a sorted list is a heap

    def add(self, snapshot: Snapshot) -> bool:
        """Take a snapshot; False where it is not awaited (any more), such as a late one of the round before."""
        rank = snapshot.entry.rank
        is_of_now = self.phase is Phase.COLLECTING and snapshot.entry.round == self.round
        if not is_of_now or rank not in self._limits_s:
            return False
        del self._limits_s[rank]
        self._snapshots[rank] = snapshot
        return True

    def late(self, now_s: float) -> list[int]:
        """Ranks whose limit has passed, in rank order."""
        if self.phase is not Phase.COLLECTING:
            return []
        return sorted(rank for rank, limit_s in self._limits_s.items() if limit_s <= now_s)

    def go_on_without(self, rank: int) -> None:
        """Await the rank no longer: it is lost. Does nothing where it is not awaited."""
        self._limits_s.pop(rank, None)

    def leave_behind(self, rank: int) -> None:
        """Await the rank no longer: it is late."""
        del self._limits_s[rank]
        self._is_short = True

    def wait_on(self, rank: int, limit_s: float) -> None:
        """Give the rank until ``limit_s``."""
        self._limits_s[rank] = limit_s
        heapq.heappush(self._soonest, (limit_s, rank))

    @property
    def is_complete(self) -> bool:
        """Whether nobody is awaited any more."""
        return self.phase is Phase.COLLECTING and not self._limits_s

    def compute(self) -> None:
        """The snapshots are being averaged."""
        self.phase = Phase.COMPUTING

    def finish(self) -> Mapping[int, Snapshot]:
        """The average is done, or given up; returns what it was made of."""
        self.phase = Phase.IDLE
        self._num_short = self._num_short + 1 if self._is_short else 0
        snapshots, self._snapshots = self._snapshots, {}
        return snapshots
