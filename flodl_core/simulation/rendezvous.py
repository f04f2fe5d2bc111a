"""The meeting place of an all-reduce in virtual time; the real one is ``flodl_core.rendezvous``."""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from flodl_core.messages import Averaged, Entry
from flodl_core.simulation.clock import Clock
from flodl_core.tally import Tally, tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What the ranks of a meeting take home.

    Attributes:
        round: The round that it closed.
        epochs: Epochs that the average completes.
        cost_ms: What averaging took.
        leader: The rank that speaks for all; see ``Tally``.
        stop: Sync: end after this round's step.
    """

    round: int
    epochs: tuple[int, ...]
    cost_ms: float
    leader: int
    stop: bool


class Guest(Protocol):
    """Who enters."""

    def met(self, meeting: Meeting) -> None:
        """The average is taken."""

    def meeting_closed(self) -> None:
        """It will not be."""


class VirtualRendezvous:
    """A meeting takes place once every rank that has not left is in.

    Args:
        clock: The time.
        world_size: Ranks at the start.
        average_ms: From the last arrival to the release.
        candidates: Given the number of epochs that averages have completed, those that the next may complete.
        epoch_size: Samples in an epoch.
        post: Hands ``Averaged`` to the coordinator before anybody is released; None where it wants none (sync).
        seed: Of the order in which ranks are released.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        world_size: int,
        average_ms: float,
        candidates: Callable[[int], range],
        epoch_size: int,
        post: Callable[[Averaged], None] | None,
        seed: int,
    ) -> None:
        self._clock = clock
        self._world_size = world_size
        self._average_ms = average_ms
        self._candidates = candidates
        self._epoch_size = epoch_size
        self._post = post
        self._rng = random.Random(f"rendezvous of {seed}")
        self._ranks = set(range(world_size))
        self._waiting: dict[int, tuple[Guest, Entry, float]] = {}
        self._num_epochs_done = 0
        self._is_closed = False
        self._stop = False

    def enter(self, guest: Guest, entry: Entry) -> None:
        """Wait for the others; ``guest`` is told what came of it."""
        assert entry.rank in self._ranks, f"rank {entry.rank} has left"
        if self._is_closed:
            guest.meeting_closed()
            return
        self._waiting[entry.rank] = (guest, entry, self._clock.now_s)
        self._meet_if_complete()

    def would_release(self, rank: int) -> bool:
        """Whether the rank would not have to wait: all others are in already, or it is closed."""
        return self._is_closed or self._waiting.keys() | {rank} == self._ranks

    def leave(self, rank: int) -> None:
        """Go for good; those that wait go on without this rank."""
        self._ranks.discard(rank)
        self._waiting.pop(rank, None)
        self._meet_if_complete()

    def close(self) -> None:
        """Let no further meeting take place and wake everybody."""
        self._is_closed = True
        waiting, self._waiting = self._waiting, {}
        for guest, _, _ in waiting.values():
            guest.meeting_closed()

    def request_stop(self) -> None:
        """Sync: let the next meeting tell all ranks to end."""
        self._stop = True

    def _meet_if_complete(self) -> None:
        if not self._waiting or len(self._waiting) < len(self._ranks):
            return
        waiting, self._waiting = self._waiting, {}
        # as in the real one: a rank that is missing has failed, and the others need not be told so
        stop = self._stop or len(waiting) < self._world_size
        now_s = self._clock.now_s
        waited_ms = {rank: 1e3 * (now_s - since_s) for rank, (_, _, since_s) in sorted(waiting.items())}
        last = max(waiting, key=lambda rank: (waiting[rank][2], rank))
        guests = {rank: guest for rank, (guest, _, _) in waiting.items()}
        terms = self._settle([entry for _, entry, _ in waiting.values()])
        round_ = waiting[last][1].round
        self._clock.after(self._average_ms / 1e3, self._release, guests, round_, terms, waited_ms, stop)

    def _settle(self, entries: list[Entry]) -> Tally:
        assert len({entry.round for entry in entries}) == 1, "ranks of one meeting share a round"
        terms = tally(entries, epochs=self._candidates(self._num_epochs_done), epoch_size=self._epoch_size)
        assert terms is not None, "replicas in a simulation are finite"
        self._num_epochs_done += len(terms.epochs)
        return terms

    def _release(
        self, guests: Mapping[int, Guest], round_: int, terms: Tally, waited_ms: Mapping[int, float], stop: bool
    ) -> None:
        if self._post is not None:
            self._post(averaged(round_, terms, cost_ms=self._average_ms, wait_ms=waited_ms))
        meeting = Meeting(round=round_, epochs=terms.epochs, cost_ms=self._average_ms, leader=terms.leader, stop=stop)
        for guest in self._in_any_order(guests.values()):
            guest.met(meeting)

    def _in_any_order(self, guests: Iterable[Guest]) -> list[Guest]:
        ordered = list(guests)
        self._rng.shuffle(ordered)
        return ordered


def averaged(round_: int, terms: Tally, *, cost_ms: float, wait_ms: Mapping[int, float]) -> Averaged:
    """What the coordinator is told of an average on these terms; its payload stands for the tensors."""
    return Averaged(
        round=round_,
        cost_ms=cost_ms,
        wait_ms=wait_ms,
        weights=terms.num_samples,
        excluded=terms.excluded,
        discarded_samples=terms.discarded_samples,
        divergence={},
        epochs=terms.epochs,
        global_step=terms.global_step,
        payload=object(),
    )
