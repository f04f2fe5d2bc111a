from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flodl_core.messages import RequestParams, Shutdown, SyncNow, Throttle, Update
from flodl_core.rounds import NO_COUNT
from flodl_core.worker_logic import (
    Action,
    BeginEpoch,
    EndWindow,
    Exit,
    Meet,
    TakeSnapshot,
    TakeUpdate,
    TrainBatch,
    Wait,
    WorkerLogic,
)
from tests.flodl_core.message_factories import BATCH_SIZE, open_round, plan, start_epoch


def _logic(*, meets: bool = True) -> WorkerLogic:
    return WorkerLogic(batch_size=BATCH_SIZE, meets=meets)


def _train(logic: WorkerLogic, *, ms: float = 10.0) -> TrainBatch:
    """Do the batch that is next."""
    action = logic.next_action()
    assert isinstance(action, TrainBatch)
    logic.batch_done(busy_ms=ms, size=action.size)
    return action


def _until_wait(logic: WorkerLogic, *, ms: float = 10.0, limit: int = 100) -> list[Action]:
    """Drive the worker until it has nothing to do; a meeting always takes place."""
    actions: list[Action] = []
    for _ in range(limit):
        action = logic.next_action()
        actions.append(action)
        match action:
            case TrainBatch():
                logic.batch_done(busy_ms=ms, size=action.size)
            case Meet():
                logic.met()
            case Wait() | Exit():
                return actions
    raise AssertionError("the worker does not come to rest")


def _batch(epoch: int, offset: int, size: int = BATCH_SIZE, *, last: bool = False) -> TrainBatch:
    return TrainBatch(epoch=epoch, offset=offset, size=size, is_last_of_queue=last)


def _running(*, meets: bool = True, samples: int = 80, count: int = NO_COUNT) -> WorkerLogic:
    """In round 0, in epoch 0, with data."""
    logic = _logic(meets=meets)
    logic.handle(open_round(0, count=count))
    logic.handle(start_epoch(0, 0, samples))
    assert logic.next_action() == BeginEpoch(epoch=0)
    return logic


# Batches


def test_worker_without_data_or_without_a_round_waits() -> None:
    logic = _logic()
    assert logic.next_action() == Wait()
    logic.handle(start_epoch(0, 0, 80))
    assert logic.next_action() == BeginEpoch(epoch=0)
    assert logic.next_action() == Wait()
    logic.handle(open_round(0))
    assert logic.next_action() == _batch(0, 0)


def test_slices_are_trained_in_the_order_in_which_they_were_dealt() -> None:
    logic = _logic()
    for message in (open_round(0), start_epoch(0, 16, 12), start_epoch(0, 40, 8)):
        logic.handle(message)
    assert _until_wait(logic) == [
        BeginEpoch(epoch=0),
        _batch(0, 16),
        _batch(0, 24, 4),
        _batch(0, 40, last=True),
        Wait(),
    ]


def test_batch_to_read_ahead_is_the_one_that_follows() -> None:
    logic = _running(samples=12)
    logic.handle(start_epoch(1, 30, 5))
    first = _train_without_answer(logic)
    assert logic.plan_after(first) == plan(0, 8, 4)
    logic.batch_done(busy_ms=1.0, size=first.size)
    second = _train_without_answer(logic)
    assert logic.plan_after(second) == plan(1, 30, 5)
    logic.batch_done(busy_ms=1.0, size=second.size)
    assert logic.next_action() == BeginEpoch(epoch=1)
    assert logic.plan_after(_train_without_answer(logic)) is None


def _train_without_answer(logic: WorkerLogic) -> TrainBatch:
    action = logic.next_action()
    assert isinstance(action, TrainBatch)
    return action


def test_nothing_is_read_ahead_of_an_epoch_without_work() -> None:
    logic = _running(samples=8)
    logic.handle(start_epoch(1, 0, 0))
    assert logic.plan_after(_train_without_answer(logic)) is None


# Epochs


def test_each_epoch_begins_once_and_in_order_also_those_without_work() -> None:
    logic = _logic()
    logic.handle(open_round(0))
    logic.handle(start_epoch(1, 0, 8))
    logic.handle(start_epoch(1, 8, 8))
    logic.handle(start_epoch(2, 0, 0))
    logic.handle(start_epoch(3, 0, 0))
    assert _until_wait(logic) == [
        BeginEpoch(epoch=0),
        BeginEpoch(epoch=1),
        _batch(1, 0),
        _batch(1, 8),
        BeginEpoch(epoch=2),
        BeginEpoch(epoch=3),
        Wait(),
    ]


def test_completed_run_begins_the_epochs_without_work_before_it_ends() -> None:
    logic = _running(samples=8)
    _train(logic)
    logic.handle(start_epoch(1, 0, 0))
    logic.handle(Shutdown(hand_in=False))
    assert _until_wait(logic) == [BeginEpoch(epoch=1), Exit(hand_in=False)]


# Windows


def test_window_ends_by_count_and_the_rank_meets() -> None:
    logic = _running(count=2)
    assert _until_wait(logic) == [
        _batch(0, 0),
        _batch(0, 8),
        EndWindow(round=0),
        Meet(round=0),
        Wait(),
    ]
    logic.handle(open_round(1, count=1))
    assert logic.round == 1
    assert _until_wait(logic) == [_batch(0, 16), EndWindow(round=1), Meet(round=1), Wait()]


def test_window_ends_when_too_little_of_the_next_batch_fits_before_the_deadline() -> None:
    logic = _logic()
    logic.handle(open_round(0, deadline_ms=35.0))
    logic.handle(start_epoch(0, 0, 80))
    actions = _until_wait(logic, ms=10.0)  # after 30 ms half a batch would fit
    assert actions == [
        BeginEpoch(epoch=0),
        *[_batch(0, 8 * i) for i in range(3)],
        EndWindow(round=0),
        Meet(round=0),
        Wait(),
    ]


def test_rank_slower_than_the_round_still_does_one_batch() -> None:
    logic = _logic()
    logic.handle(start_epoch(0, 0, 80))
    logic.handle(open_round(0, deadline_ms=5.0))
    actions = _until_wait(logic, ms=100.0)
    logic.handle(open_round(1, deadline_ms=5.0))
    actions += _until_wait(logic, ms=100.0)
    assert [action for action in actions if isinstance(action, TrainBatch)] == [_batch(0, 0), _batch(0, 8)]


def test_smaller_last_batch_is_kept_out_of_the_batch_time() -> None:
    logic = _running(samples=12)
    _train(logic, ms=10.0)
    _train(logic, ms=1.0)
    logic.handle(start_epoch(0, 20, 24))
    logic.handle(open_round(0, deadline_ms=17.0))  # 11 ms are gone: 6 ms hold 0.6 of a batch
    assert logic.next_action() == EndWindow(round=0)


def test_worker_that_does_not_meet_trains_on_after_its_window() -> None:
    logic = _running(meets=False, count=1, samples=24)
    assert _until_wait(logic) == [
        _batch(0, 0),
        EndWindow(round=0),
        _batch(0, 8),
        _batch(0, 16, last=True),
        Wait(),
    ]


def test_worker_that_does_not_meet_goes_on_to_the_next_round_at_once() -> None:
    logic = _running(meets=False)
    _train(logic)
    logic.handle(open_round(1, count=1))
    assert logic.round == 1
    _train(logic)
    assert logic.next_action() == EndWindow(round=1)


def test_next_round_may_be_announced_while_the_window_runs() -> None:
    logic = _running(count=1)
    logic.handle(open_round(1, count=1))
    assert logic.round == 0
    assert _until_wait(logic) == [
        _batch(0, 0),
        EndWindow(round=0),
        Meet(round=0),
        _batch(0, 8),
        EndWindow(round=1),
        Meet(round=1),
        Wait(),
    ]


def test_round_opened_anew_gets_better_limits_and_keeps_what_was_done() -> None:
    logic = _running()
    _train(logic)
    _train(logic)
    better = open_round(0, count=3, planned=3, total=9)
    logic.handle(better)
    assert logic.opened == better
    assert _until_wait(logic) == [_batch(0, 16), EndWindow(round=0), Meet(round=0), Wait()]


def test_round_opened_anew_after_it_has_passed_changes_nothing() -> None:
    logic = _running(count=1)
    current = open_round(1, count=1)
    logic.handle(current)
    _until_wait(logic)
    logic.handle(open_round(0, count=5))
    logic.handle(open_round(1, count=5))
    assert logic.opened == current
    assert _until_wait(logic) == [Wait()]


def test_window_that_has_ended_is_not_opened_anew() -> None:
    logic = _running(count=1, meets=False)
    _train(logic)
    assert logic.next_action() == EndWindow(round=0)
    logic.handle(open_round(0, count=5))
    assert not any(isinstance(action, EndWindow) for action in _until_wait(logic))


# Being told to meet or to wait


def test_rank_told_to_meet_ends_its_window_after_the_batch_under_way() -> None:
    logic = _running()
    action = _train_without_answer(logic)
    logic.handle(SyncNow(round=0))
    logic.batch_done(busy_ms=1.0, size=action.size)
    assert _until_wait(logic) == [EndWindow(round=0), Meet(round=0), Wait()]


def test_rank_without_data_goes_and_waits_at_the_meeting() -> None:
    logic = _running(samples=8)
    _train(logic)
    assert logic.next_action() == Wait()
    logic.handle(SyncNow(round=0))
    assert [logic.next_action(), logic.next_action()] == [EndWindow(round=0), Meet(round=0)]


def test_rank_told_to_meet_before_it_has_done_a_batch_does_none() -> None:
    logic = _running()
    logic.handle(SyncNow(round=0))
    assert _until_wait(logic) == [EndWindow(round=0), Meet(round=0), Wait()]


def test_call_to_a_meeting_that_has_taken_place_is_stale() -> None:
    logic = _running(count=1)
    logic.handle(open_round(1))
    _until_round_1 = [_train(logic), logic.next_action(), logic.next_action()]
    assert _until_round_1[1:] == [EndWindow(round=0), Meet(round=0)]
    logic.met()
    logic.handle(SyncNow(round=0))
    assert isinstance(logic.next_action(), TrainBatch)


def test_rank_called_to_a_later_meeting_ends_every_window_before_it() -> None:
    logic = _running(count=1)
    logic.handle(SyncNow(round=1))
    logic.handle(open_round(1))
    assert _until_wait(logic) == [
        EndWindow(round=0),
        Meet(round=0),
        EndWindow(round=1),
        Meet(round=1),
        Wait(),
    ]


def test_throttled_rank_ends_its_window_and_waits_for_the_next_round() -> None:
    logic = _running(meets=False)
    _train(logic)
    logic.handle(Throttle(round=0))
    assert _until_wait(logic) == [EndWindow(round=0), Wait()]
    logic.handle(open_round(1))
    assert isinstance(logic.next_action(), TrainBatch)


def test_throttled_rank_that_meets_waits_at_the_meeting() -> None:
    logic = _running()
    logic.handle(Throttle(round=0))
    assert [logic.next_action(), logic.next_action()] == [EndWindow(round=0), Meet(round=0)]


# Averages through the coordinator


def test_throttled_rank_still_takes_part_in_the_average() -> None:
    logic = _running(meets=False)
    logic.handle(Throttle(round=0))
    logic.handle(RequestParams(round=0))
    assert _until_wait(logic) == [TakeSnapshot(round=0), EndWindow(round=0), Wait()]


def test_update_and_the_next_request_that_arrive_together_are_taken_in_order() -> None:
    logic = _running(meets=False)
    update = Update(round=4, payload="mean", global_step=9)
    logic.handle(update)
    logic.handle(open_round(6))
    logic.handle(RequestParams(round=5))
    assert [logic.next_action(), logic.next_action()] == [TakeUpdate(update=update), TakeSnapshot(round=5)]
    assert isinstance(logic.next_action(), TrainBatch)


def test_exchange_comes_before_the_next_batch_and_before_the_end() -> None:
    logic = _running(meets=False)
    update = Update(round=0, payload="mean", global_step=9)
    for message in (RequestParams(round=0), update, Shutdown(hand_in=True)):
        logic.handle(message)
    assert _until_wait(logic) == [TakeSnapshot(round=0), TakeUpdate(update=update), Exit(hand_in=True)]


# The end


def test_stopped_worker_ends_at_once_and_hands_in_its_replica() -> None:
    logic = _running()
    action = _train_without_answer(logic)
    logic.handle(Shutdown(hand_in=True))
    logic.batch_done(busy_ms=1.0, size=action.size)
    assert logic.next_action() == Exit(hand_in=True)


def test_worker_whose_meeting_was_closed_waits_for_its_end() -> None:
    logic = _running(count=1)
    _train(logic)
    assert [logic.next_action(), logic.next_action()] == [EndWindow(round=0), Meet(round=0)]
    logic.meeting_closed()
    assert logic.next_action() == Wait()
    logic.handle(open_round(1))
    assert logic.next_action() == Wait()
    logic.handle(Shutdown(hand_in=True))
    assert logic.next_action() == Exit(hand_in=True)


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    meets=st.booleans(),
    data=st.data(),
)
def test_every_sample_is_trained_once_in_any_order_of_messages(
    sizes: list[int], counts: list[int], meets: bool, data: st.DataObject
) -> None:
    logic = _logic(meets=meets)
    deals = [start_epoch(epoch, 0, size) for epoch, size in enumerate(sizes)]
    rounds = [open_round(number, count=count) for number, count in enumerate(counts)]
    rounds.append(open_round(len(counts)))
    actions: list[Action] = []
    while deals or rounds:
        source = data.draw(st.sampled_from([queue for queue in (deals, rounds) if queue]))
        logic.handle(source.pop(0))
        if data.draw(st.booleans()):
            actions += _until_wait(logic)
    actions += _until_wait(logic)
    trained = [(act.epoch, act.offset + i) for act in actions if isinstance(act, TrainBatch) for i in range(act.size)]
    assert trained == [(epoch, i) for epoch, size in enumerate(sizes) for i in range(size)]
    begun = [act.epoch for act in actions if isinstance(act, BeginEpoch)]
    assert begun == list(range(len(sizes)))
    meetings = [act.round for act in actions if isinstance(act, Meet)]
    assert meetings == (list(range(len(meetings))) if meets else [])
    ended = [act.round for act in actions if isinstance(act, EndWindow)]
    assert ended == sorted(set(ended))
