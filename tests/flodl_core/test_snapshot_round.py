from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.snapshot_round import MOST_DOUBLINGS, Phase, SnapshotRound
from tests.flodl_core.message_factories import snapshot

FOREVER = float("inf")


def _collecting(*, limits_s: dict[int, float] | None = None) -> SnapshotRound:
    average = SnapshotRound()
    average.collect(3, limits_s or {0: 5.0, 1: 7.0})
    return average


def test_round_is_complete_once_everybody_has_handed_in() -> None:
    average = _collecting()
    first, second = snapshot(0, round_=3), snapshot(1, round_=3)
    steps = [(average.add(message), average.is_complete) for message in (second, first)]
    assert steps == [(True, False), (True, True)]
    assert average.snapshots == {0: first, 1: second}
    average.compute()
    assert average.finish() == {0: first, 1: second}
    assert (average.phase, average.snapshots, average.is_complete) == (Phase.IDLE, {}, False)


def test_snapshot_is_taken_only_where_it_is_awaited() -> None:
    average = _collecting()
    assert not average.add(snapshot(0, round_=2)), "the round before"
    assert not average.add(snapshot(2, round_=3)), "a rank that is not awaited"
    assert average.add(snapshot(0, round_=3))
    assert not average.add(snapshot(0, round_=3)), "twice"
    average.go_on_without(1)
    average.compute()
    assert not average.add(snapshot(1, round_=3)), "while the others are averaged"
    average.finish()
    assert not average.add(snapshot(1, round_=3)), "after it"


def test_ranks_are_late_from_their_limit_on() -> None:
    average = _collecting()
    assert average.next_limit_s == 5.0
    assert [average.late(now_s) for now_s in (4.9, 5.0, 7.0)] == [[], [0], [0, 1]]
    average.wait_on(0, 9.0)
    assert (average.next_limit_s, average.late(7.0)) == (7.0, [1])
    average.go_on_without(1)
    average.go_on_without(1)
    assert (average.next_limit_s, average.is_complete) == (9.0, False)


def test_nobody_is_late_while_the_average_is_computed() -> None:
    average = _collecting()
    average.compute()
    assert average.next_limit_s is None
    assert average.late(100.0) == []


def test_rank_without_a_limit_is_never_late() -> None:
    average = _collecting(limits_s={0: FOREVER})
    assert average.next_limit_s is None
    assert average.late(1e9) == []


def test_round_of_which_everybody_is_gone_is_complete_and_empty() -> None:
    average = _collecting()
    average.go_on_without(0)
    average.go_on_without(1)
    assert (average.is_complete, dict(average.snapshots)) == (True, {})


def test_two_averages_at_once_are_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError, match="never two averages at once"):
        _collecting().collect(4, {0: 1.0})


def _average_without(average: SnapshotRound, *, late: tuple[int, ...], lost: tuple[int, ...] = ()) -> None:
    average.collect(3, {0: 1.0, 1: 1.0, 2: 1.0})
    for rank in late:
        average.leave_behind(rank)
    for rank in lost:
        average.go_on_without(rank)
    average.compute()
    average.finish()


def test_ranks_get_twice_the_time_after_each_average_in_a_row_that_went_on_without_a_late_one() -> None:
    average = SnapshotRound()
    patience = [average.patience]
    for late in ((1,), (0, 1), (2,), ()):
        _average_without(average, late=late)
        patience.append(average.patience)
    assert patience == [1, 2, 4, 8, 1]


def test_rank_that_is_lost_is_none_to_be_patient_with() -> None:
    average = SnapshotRound()
    _average_without(average, late=(), lost=(1, 2))
    assert average.patience == 1


def test_patience_has_an_end() -> None:
    average = SnapshotRound()
    for _ in range(2 * MOST_DOUBLINGS):
        _average_without(average, late=(1,))
    assert average.patience == 2**MOST_DOUBLINGS


steps = st.tuples(st.sampled_from(["hand in", "go on", "wait"]), st.integers(0, 4), st.integers(1, 6))


@given(st.dictionaries(st.integers(0, 4), st.sampled_from([1.0, 2.0, 3.0, FOREVER]), min_size=1), st.lists(steps))
def test_next_limit_is_that_of_the_first_rank_that_is_awaited(
    limits_s: dict[int, float], given_steps: list[tuple[str, int, int]]
) -> None:
    average = _collecting(limits_s=limits_s)
    awaited = dict(limits_s)
    for step, rank, limit_s in given_steps:
        if step == "wait" and rank in awaited:
            awaited[rank] = float(limit_s)
            average.wait_on(rank, float(limit_s))
        elif step == "hand in":
            assert average.add(snapshot(rank, round_=3)) == (rank in awaited)
            awaited.pop(rank, None)
        elif step == "go on":
            average.go_on_without(rank)
            awaited.pop(rank, None)
        soonest = min(awaited.values(), default=FOREVER)
        assert average.next_limit_s == (soonest if math.isfinite(soonest) else None)
