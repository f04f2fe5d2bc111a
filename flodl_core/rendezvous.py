"""Where the workers of one process meet for an all-reduce.

Guarantees:

- A meeting takes place once every rank that has not left is in; the last to arrive reduces for all.
- All ranks of a meeting get the same result, or all raise the same error.
- Nobody waits for a rank that left, and ``close`` wakes everybody.
- Two meetings never overlap: the next cannot fill before each rank of this one has gone and come back.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from flodl_core.errors import AveragingError, FlodlError

C = TypeVar("C")
R = TypeVar("R")

Reduce = Callable[[Mapping[int, C], Mapping[int, float]], R]
"""(contributions by rank, seconds that each rank has waited) -> result for all. Runs with all ranks stopped."""


class Rendezvous(Generic[C, R]):
    """A meeting place for threads. All methods may be called from any thread.

    Args:
        ranks: Who must be in before a meeting takes place.
        reduce: What the last to arrive does with the contributions, in its own thread.
        now_s: A monotonic clock in seconds.
    """

    def __init__(
        self, ranks: Iterable[int], reduce: Reduce[C, R], *, now_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._ranks = set(ranks)
        self._reduce = reduce
        self._now_s = now_s
        self._changed = threading.Condition()
        self._contributions: dict[int, C] = {}
        self._arrived_s: dict[int, float] = {}
        self._generation = 0
        self._result: R | None = None
        self._error: BaseException | None = None
        self._is_closed = False

    def enter(self, rank: int, contribution: C) -> R | None:
        """Wait for the others and take the result.

        Args:
            rank: Who enters.
            contribution: What it brings. Others may read and write it until this call returns.

        Returns:
            The result, or None when the rendezvous was closed before everybody was in, or the rank had left.

        Raises:
            FlodlError: Reducing failed; every rank of the meeting gets the same error, ``AveragingError`` where it was
                not one of flodl's.
        """
        with self._changed:
            if rank not in self._ranks:
                return None  # a rank that hung for too long: the others have gone on without it
            generation = self._generation
            self._contributions[rank] = contribution
            self._arrived_s[rank] = self._now_s()
            while self._generation == generation:
                if self._is_closed or rank not in self._ranks:
                    self._contributions.pop(rank, None)
                    return None
                if len(self._contributions) == len(self._ranks):
                    self._meet()
                    break
                self._changed.wait()
            if isinstance(self._error, FlodlError):
                raise type(self._error)(*self._error.args) from self._error
            if self._error is not None:
                raise AveragingError(f"averaging failed: {self._error!r}") from self._error
            return self._result

    def _meet(self) -> None:
        now_s = self._now_s()
        waited_s = {rank: now_s - arrived_s for rank, arrived_s in sorted(self._arrived_s.items())}
        self._result, self._error = None, None
        try:
            self._result = self._reduce(self._contributions, waited_s)
        except Exception as error:  # noqa: BLE001  # raised by every rank that waits here, not by the last alone
            self._error = error
        self._contributions = {}
        self._arrived_s = {}
        self._generation += 1
        self._changed.notify_all()

    def leave(self, rank: int) -> None:
        """Go for good; those that wait go on without this rank. May be called twice."""
        with self._changed:
            self._ranks.discard(rank)
            self._contributions.pop(rank, None)
            self._arrived_s.pop(rank, None)
            self._changed.notify_all()  # one of those that wait may now be the last to have arrived

    def close(self) -> None:
        """Let no further meeting take place and wake everybody. May be called twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
