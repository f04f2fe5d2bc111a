from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from flodl_core.errors import AveragingError, FlodlError, NonFiniteError
from flodl_core.rendezvous import Rendezvous

LIMIT_S = 30.0

Reduce = Callable[[Mapping[int, int], Mapping[int, float]], int]


class Clock:
    """Moves by a second each time that it is read.

    ``enter`` reads it once, holding the lock: whoever takes the lock after that finds the rank waiting.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._read = threading.Semaphore(0)

    def __call__(self) -> float:
        self._now_s += 1.0
        self._read.release()
        return self._now_s

    def wait_for_arrival(self) -> None:
        assert self._read.acquire(timeout=LIMIT_S)


@dataclass
class Visitor:
    """A rank on a daemon thread of its own, which enters once: where nobody wakes it, the test fails and no more."""

    place: Rendezvous[int, int]
    rank: int
    contribution: int
    results: list[int | None] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def start(self) -> Visitor:
        self.thread = threading.Thread(target=self._enter, daemon=True)
        self.thread.start()
        return self

    def _enter(self) -> None:
        try:
            self.results.append(self.place.enter(self.rank, self.contribution))
        except FlodlError as error:
            self.errors.append(error)

    def result(self) -> int | None:
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive(), f"rank {self.rank} still waits"
        (result,) = self.results
        return result

    def error(self) -> BaseException:
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive(), f"rank {self.rank} still waits"
        (error,) = self.errors
        return error


def _sum(contributions: Mapping[int, int], waited_s: Mapping[int, float]) -> int:
    return sum(contributions.values())


def _waiting(place: Rendezvous[int, int], clock: Clock, ranks: Iterable[int]) -> list[Visitor]:
    """Visitors that have arrived, in this order, and wait; rank r brings 10 ** r."""
    visitors = []
    for rank in ranks:
        visitors.append(Visitor(place, rank, 10**rank).start())
        clock.wait_for_arrival()
    return visitors


def test_last_to_arrive_reduces_for_all() -> None:
    clock, by = Clock(), []

    def reduce(contributions: Mapping[int, int], waited_s: Mapping[int, float]) -> int:
        by.append(threading.get_ident())
        return _sum(contributions, waited_s)

    place = Rendezvous(range(3), reduce, now_s=clock)
    visitors = _waiting(place, clock, (2, 0))
    assert place.enter(1, 10) == 111
    assert [visitor.result() for visitor in visitors] == [111, 111]
    assert by == [threading.get_ident()]


def test_reducer_is_told_how_long_each_rank_has_waited() -> None:
    clock, seen = Clock(), []

    def reduce(contributions: Mapping[int, int], waited_s: Mapping[int, float]) -> int:
        seen.append((dict(contributions), dict(waited_s)))
        return 0

    place = Rendezvous(range(3), reduce, now_s=clock)
    visitors = _waiting(place, clock, (2, 0))
    place.enter(1, 10)
    for visitor in visitors:
        visitor.result()
    assert seen == [({2: 100, 0: 1, 1: 10}, {2: 3.0, 0: 2.0, 1: 1.0})]


def test_rank_alone_meets_at_once() -> None:
    assert Rendezvous([4], _sum).enter(4, 7) == 7


def test_result_may_be_none() -> None:
    def nothing(contributions: Mapping[int, int], waited_s: Mapping[int, float]) -> None:
        return None

    clock = Clock()
    place: Rendezvous[int, None] = Rendezvous(range(2), nothing, now_s=clock)
    thread = threading.Thread(target=place.enter, args=(0, 1), daemon=True)
    thread.start()
    clock.wait_for_arrival()
    place.enter(1, 1)
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_rank_that_leaves_completes_the_meeting_of_those_that_wait() -> None:
    clock = Clock()
    place = Rendezvous(range(3), _sum, now_s=clock)
    visitors = _waiting(place, clock, (0, 1))
    place.leave(2)
    place.leave(2)
    assert [visitor.result() for visitor in visitors] == [11, 11]


def test_nobody_waits_for_a_rank_that_left_before() -> None:
    clock = Clock()
    place = Rendezvous(range(3), _sum, now_s=clock)
    place.leave(0)
    (visitor,) = _waiting(place, clock, (2,))
    assert place.enter(1, 10) == 110
    assert visitor.result() == 110


def test_rank_that_left_meets_nobody() -> None:
    place = Rendezvous(range(2), _sum)
    place.leave(0)
    assert place.enter(0, 1) is None
    assert place.enter(1, 10) == 10


def test_rank_that_is_made_to_leave_while_it_waits_goes_home() -> None:
    clock = Clock()
    place = Rendezvous(range(2), _sum, now_s=clock)
    (visitor,) = _waiting(place, clock, (0,))
    place.leave(0)
    assert visitor.result() is None
    assert place.enter(1, 10) == 10


def test_closing_wakes_everybody_and_no_meeting_takes_place_after() -> None:
    clock = Clock()
    place = Rendezvous(range(3), _sum, now_s=clock)
    visitors = _waiting(place, clock, (0, 1))
    place.close()
    place.close()
    assert [visitor.result() for visitor in visitors] == [None, None]
    assert place.enter(2, 100) is None
    place.leave(0)
    place.leave(1)
    assert place.enter(2, 100) is None


def test_meeting_that_took_place_keeps_its_result_where_it_is_closed_before_all_have_woken() -> None:
    clock = Clock()

    def close_and_sum(contributions: Mapping[int, int], waited_s: Mapping[int, float]) -> int:
        place._is_closed = True  # close() takes the lock that is held here; its effect is this
        return _sum(contributions, waited_s)

    place = Rendezvous(range(2), close_and_sum, now_s=clock)
    (visitor,) = _waiting(place, clock, (0,))
    assert place.enter(1, 10) == 11
    assert visitor.result() == 11


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (NonFiniteError("the training has diverged"), NonFiniteError, "the training has diverged"),
        (RuntimeError("shapes differ"), AveragingError, "averaging failed: RuntimeError('shapes differ')"),
        (ZeroDivisionError(), AveragingError, "averaging failed: ZeroDivisionError()"),
    ],
)
def test_reducer_that_raises_reaches_every_rank(raised: Exception, kind: type[FlodlError], message: str) -> None:
    def fail(contributions: Mapping[int, int], waited_s: Mapping[int, float]) -> int:
        raise raised

    clock = Clock()
    place = Rendezvous(range(3), fail, now_s=clock)
    visitors = _waiting(place, clock, (0, 2))
    with pytest.raises(kind) as caught:
        place.enter(1, 10)
    errors = [caught.value, *(visitor.error() for visitor in visitors)]
    assert [type(error) for error in errors] == [kind] * 3
    assert [str(error) for error in errors] == [message] * 3
    assert all(error.__cause__ is raised for error in errors)
    assert len({id(error) for error in errors}) == 3, "a traceback belongs to one thread"


def test_meeting_after_one_that_failed_starts_afresh() -> None:
    outcomes: list[Exception | None] = [ValueError("once"), None]

    def sometimes(contributions: Mapping[int, int], waited_s: Mapping[int, float]) -> int:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return _sum(contributions, waited_s)

    clock = Clock()
    place = Rendezvous(range(2), sometimes, now_s=clock)
    (visitor,) = _waiting(place, clock, (0,))
    with pytest.raises(AveragingError):
        place.enter(1, 10)
    assert isinstance(visitor.error(), AveragingError)
    clock.wait_for_arrival()  # the last arrival and the meeting each read the clock as well
    clock.wait_for_arrival()
    (visitor,) = _waiting(place, clock, (1,))
    assert place.enter(0, 1) == 11
    assert visitor.result() == 11


def test_two_meetings_never_overlap() -> None:
    """Ranks run on as fast as they can; each of a meeting's ranks must get that meeting's result."""
    num_ranks, num_meetings = 4, 200
    busy = threading.Lock()

    def reduce(contributions: Mapping[int, int], waited_s: Mapping[int, float]) -> int:
        assert busy.acquire(blocking=False), "two meetings at once"
        (number,) = set(contributions.values())
        assert len(contributions) == num_ranks
        busy.release()
        return number

    place = Rendezvous(range(num_ranks), reduce)
    results: list[list[int | None]] = [[] for _ in range(num_ranks)]

    def attend(rank: int) -> None:
        for number in range(num_meetings):
            results[rank].append(place.enter(rank, number))

    threads = [threading.Thread(target=attend, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert results == [list(range(num_meetings))] * num_ranks


def test_rank_that_comes_back_first_waits_for_the_next_meeting() -> None:
    clock = Clock()
    place = Rendezvous(range(2), _sum, now_s=clock)
    (first,) = _waiting(place, clock, (0,))
    assert place.enter(1, 10) == 11
    clock.wait_for_arrival()
    clock.wait_for_arrival()
    # rank 1 is back, whether or not rank 0 has woken yet
    back = Visitor(place, 1, 20).start()
    clock.wait_for_arrival()
    assert first.result() == 11
    assert place.enter(0, 2) == 22
    assert back.result() == 22
