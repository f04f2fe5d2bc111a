"""Moments in a run of threads at which a test may act or make a rank wait: the seams that the engine has anyway.

Whose moment it is follows from the thread. What a test adds there may wait for other ranks' moments, and may raise.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from flodl_core.channel import ThreadChannel
from flodl_core.commands import Command, Send
from flodl_core.messages import FINAL_ROUND, Entry, Shutdown, Snapshot
from flodl_core.rendezvous import Rendezvous
from flodl_core.run import Run
from flodl_core.worker import Worker
from flodl_core.worker_ledger import WorkerLedger
from tests.flodl_core.test_hangs import rank_of_thread
from tests.flodl_core.training import LIMIT_S

Act = Callable[[int, int], None]
"""(rank, round): what a test does at a moment, in the rank's thread."""


def _nothing(rank: int, round_: int) -> None:
    return


class _Watched(threading.Condition):
    """A condition that says who is about to wait, while the lock is held."""

    def __init__(self, on_wait: Callable[[], None]) -> None:
        super().__init__()
        self._on_wait = on_wait

    def wait(self, timeout: float | None = None) -> bool:
        self._on_wait()
        return super().wait(timeout)


class Moments:
    """Looks on at the runs of one test.

    Args:
        patch: Takes everything back.

    Attributes:
        on_entry: When a rank is about to give its part to a round's average.
        on_wait: When it is in at the rendezvous and about to wait; the rendezvous is locked.
        on_failure: When it has raised and has told nobody yet.
        on_averaged: When it has taken an average; with the last epoch that this completes, or -1, in place of a round.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.on_entry: Act = _nothing
        self.on_wait: Act = _nothing
        self.on_failure: Act = _nothing
        self.on_averaged: Act = _nothing
        self._patch = patch
        self._changed = threading.Condition()
        self._round_of: dict[int, int] = {}
        self._given: set[tuple[int, int]] = set()
        self._failed: set[int] = set()
        self._gone: set[int] = set()
        self._told_to_end: set[int] = set()
        self._num_meetings = 0
        for watch in (self._watch_ledgers, self._watch_messages, self._watch_rendezvous, self._watch_workers):
            watch()

    # Waiting for them

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, LIMIT_S), "what a rank waits for does not happen"

    def wait_until_given(self, *ranks: int, round_: int) -> None:
        """Until these ranks have handed in for the round's average, or wait for it at the rendezvous."""
        self._wait_for(lambda: {(rank, round_) for rank in ranks} <= self._given)

    def wait_until_failed(self, rank: int) -> None:
        """Until the rank has raised; it may have told nobody yet."""
        self._wait_for(lambda: rank in self._failed)

    def wait_until_gone(self, rank: int) -> None:
        """Until the rank's thread has nothing more to do."""
        self._wait_for(lambda: rank in self._gone)

    def wait_until_told_to_end(self, rank: int) -> None:
        """Until the coordinator has said so to the rank."""
        self._wait_for(lambda: rank in self._told_to_end)

    def wait_for_meeting(self, number: int) -> None:
        """Until that many meetings have taken place."""
        self._wait_for(lambda: self._num_meetings >= number)

    # Noting them

    def _note(self, note: Callable[[], object]) -> None:
        with self._changed:
            note()
            self._changed.notify_all()

    def _watch_ledgers(self) -> None:
        for name in ("entry", "gradient_entry"):
            self._patch.setattr(WorkerLedger, name, self._entering(getattr(WorkerLedger, name)))
        averaged = WorkerLedger.averaged

        def take(ledger: WorkerLedger, epochs: Any) -> None:
            averaged(ledger, epochs)
            self.on_averaged(_rank(), max(epochs, default=-1))

        self._patch.setattr(WorkerLedger, "averaged", take)

    def _entering(self, make: Callable[..., Entry]) -> Callable[..., Entry]:
        def enter(ledger: WorkerLedger, *, round_: int, **kwargs: Any) -> Entry:
            if round_ != FINAL_ROUND:
                self._round_of[_rank()] = round_
                self.on_entry(_rank(), round_)
            return make(ledger, round_=round_, **kwargs)

        return enter

    def _watch_messages(self) -> None:
        send, close, execute = ThreadChannel.send, ThreadChannel.close, Run._execute

        def note_and_send(channel: ThreadChannel[Any], message: Any) -> None:
            send(channel, message)
            if isinstance(message, Snapshot):
                self._note(lambda: self._given.add((message.entry.rank, message.entry.round)))

        def close_and_note(channel: ThreadChannel[Any]) -> None:
            close(channel)
            rank = rank_of_thread()
            if rank is not None:  # a worker's thread closes its inbox as its last act
                self._note(lambda: self._gone.add(rank))

        def execute_and_note(run: Run, commands: list[Command]) -> None:
            execute(run, commands)
            ends = {command.rank for command in commands if isinstance(command, Send) and is_end(command)}
            self._note(lambda: self._told_to_end.update(ends))

        def is_end(command: Send) -> bool:
            return isinstance(command.message, Shutdown)

        self._patch.setattr(ThreadChannel, "send", note_and_send)
        self._patch.setattr(ThreadChannel, "close", close_and_note)
        self._patch.setattr(Run, "_execute", execute_and_note)

    def _watch_rendezvous(self) -> None:
        make, meet = Rendezvous.__init__, Rendezvous._meet

        def make_watched(place: Rendezvous[Any, Any], *args: Any, **kwargs: Any) -> None:
            make(place, *args, **kwargs)
            place._changed = _Watched(self._waits)

        def meet_and_note(place: Rendezvous[Any, Any]) -> None:
            meet(place)
            self._note(lambda: setattr(self, "_num_meetings", self._num_meetings + 1))

        self._patch.setattr(Rendezvous, "__init__", make_watched)
        self._patch.setattr(Rendezvous, "_meet", meet_and_note)

    def _waits(self) -> None:
        rank = _rank()
        round_ = self._round_of[rank]
        self._note(lambda: self._given.add((rank, round_)))
        self.on_wait(rank, round_)

    def _watch_workers(self) -> None:
        report = Worker.flush_after_failure

        def fail(worker: Worker) -> None:
            self._note(lambda: self._failed.add(worker.seat.rank))
            self.on_failure(worker.seat.rank, self._round_of.get(worker.seat.rank, -1))
            report(worker)

        self._patch.setattr(Worker, "flush_after_failure", fail)


def _rank() -> int:
    rank = rank_of_thread()
    assert rank is not None, "only workers come here"
    return rank
