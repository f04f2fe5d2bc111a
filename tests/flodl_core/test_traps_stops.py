"""A stop while an average is computed, and one that finds the ranks of a sync run in different rounds.

See ``test_traps.py`` for the other ways in which a run might come to a standstill.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl_core import ApplyPolicy, AverageBackend, DdpHandle, SyncEvent, WorkerFailureWarning
from flodl_core.averaging import Averager
from flodl_core.coordinator import Coordinator
from flodl_core.errors import SimulationError
from flodl_core.local_coordinator import LocalCoordinator
from flodl_core.meetings import GradientMeeting, MeetingResult
from flodl_core.messages import CallbackFailed, Shutdown, StopRequested, ToCoordinator, ToWorker
from flodl_core.simulation.rendezvous import VirtualRendezvous
from flodl_core.simulation.worker import Activity
from flodl_core.snapshot_round import Phase
from flodl_core.sync_coordinator import SyncCoordinator
from flodl_core.sync_logic import SyncLogic
from flodl_core.sync_worker import SyncWorker
from flodl_core.worker_logic import Exit
from tests.flodl_core.forced import Forced, Hold, run_forced
from tests.flodl_core.simulation.laws import (
    check_always,
    check_ends_after_the_batch_under_way,
    check_epochs_so_far,
    check_result,
    check_run,
)
from tests.flodl_core.test_faults import CrashError
from tests.flodl_core.test_hangs import rank_of_thread
from tests.flodl_core.test_traps import unlike
from tests.flodl_core.training import (
    BACKENDS,
    LIMIT_S,
    LOCAL_POLICIES,
    POLICIES,
    Samples,
    TrainLog,
    as_vector,
    configure,
    events_of,
    every_way,
    finish,
    numbered_samples,
)

each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_policy = pytest.mark.parametrize("policy", POLICIES)
each_local_policy = pytest.mark.parametrize("policy", LOCAL_POLICIES)
MANY_EPOCHS = 100_000

# A stop while an average is computed


class Computing:
    """Acts while an average is computed: the second of a run.

    Args:
        patch: Takes everything back.
        policy: Of the run.
        act: What happens then, in the thread that averages.
    """

    def __init__(self, patch: pytest.MonkeyPatch, policy: ApplyPolicy, act: Callable[[], None]) -> None:
        self._act = act
        self._num_averages = 0
        self._was_told = threading.Event()
        kind = "average" if policy is ApplyPolicy.SYNC else "consensus"
        for name in (kind, f"{kind}_in_place"):
            patch.setattr(Averager, name, self._acting(getattr(Averager, name)))
        stop = Coordinator._stop

        def stop_and_note(coordinator: Coordinator, status: str) -> None:
            stop(coordinator, status)
            self._was_told.set()

        patch.setattr(Coordinator, "_stop", stop_and_note)

    def _acting(self, average: Callable[..., Any]) -> Callable[..., Any]:
        def act_and_average(averager: Averager, *args: Any) -> Any:
            self._num_averages += 1
            if self._num_averages == 2:
                self._act()
                assert self._was_told.wait(LIMIT_S), "the coordinator does not listen"
            return average(averager, *args)

        return act_and_average


def endless(policy: ApplyPolicy, backend: AverageBackend, log: TrainLog, train_fn: Any = None) -> Any:
    builder = configure(
        numbered_samples(8000),
        policy=policy,
        backend=backend,
        train_fn=train_fn or log.train_fn,
        num_epochs=MANY_EPOCHS,
    )
    return builder.epoch_fn(log.begin_epoch).anchor(2)


@every_way
def test_stop_while_an_average_is_computed(
    monkeypatch: pytest.MonkeyPatch, policy: ApplyPolicy, backend: AverageBackend
) -> None:
    handles: list[DdpHandle] = []
    is_running = threading.Event()

    def stop() -> None:
        assert is_running.wait(LIMIT_S)
        handles[0].cancel()

    Computing(monkeypatch, policy, stop)
    log = TrainLog()
    handles.append(endless(policy, backend, log).run())
    is_running.set()
    outcome = finish(handles[0])
    assert outcome.handle.status == "cancelled"
    assert torch.isfinite(as_vector(outcome.state)).all()
    assert outcome.handle.progress().totals.num_batches == log.num_calls
    assert set(log.samples.values()) == {1}
    if policy is not ApplyPolicy.SYNC:
        assert [event.round for event in events_of(outcome, SyncEvent)] == [0, 1], "the average under way counts"


@each_local_policy
def test_death_while_an_average_is_computed(monkeypatch: pytest.MonkeyPatch, policy: ApplyPolicy) -> None:
    dies = threading.Event()
    log = TrainLog()

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        if dies.is_set() and rank_of_thread() == 1:
            raise CrashError("rank 1 gives up")
        return log.train_fn(model, batch)

    Computing(monkeypatch, policy, dies.set)
    with pytest.warns(WorkerFailureWarning, match="rank 1 gives up"):
        outcome = finish(endless(policy, AverageBackend.CPU, log, train_fn).run())
    assert outcome.handle.status == "failed"
    assert outcome.handle.progress().totals.num_batches == log.num_calls
    assert [event.round for event in events_of(outcome, SyncEvent)] == [0, 1], "the average under way counts"


def is_computing(run: Forced) -> bool:
    coordinator = run.coordinator
    if isinstance(coordinator, SyncCoordinator):
        return coordinator._is_computing
    assert isinstance(coordinator, LocalCoordinator)
    return coordinator._average.phase is Phase.COMPUTING


@each_policy
@pytest.mark.parametrize(
    ("told", "status"),
    [(StopRequested(), "cancelled"), (CallbackFailed(error=CrashError("bad evaluation")), "failed")],
    ids=["stop", "callback"],
)
@pytest.mark.parametrize("after_s", [0.0, 0.3, 1.0])
def test_stop_while_an_average_is_computed_in_virtual_time(
    policy: ApplyPolicy, told: ToCoordinator, status: str, after_s: float
) -> None:
    spec = replace(unlike(policy, meets=False, num_batches=400), average_ms=30.0)
    run = run_forced(spec, told=told, once=lambda run: run.clock.now_s >= after_s and is_computing(run))
    assert run.status == status
    for check in (check_always, check_epochs_so_far, check_result, check_ends_after_the_batch_under_way):
        check(run)


# A stop that finds ranks of a sync run in different rounds


def check_end_in_one_round(*, meets: bool, late: int) -> None:
    """One rank has the stop rounds before it is decided which is the last, the other when the first has ended."""
    request_stop = VirtualRendezvous.request_stop

    def request_later(place: VirtualRendezvous) -> None:
        place._clock.after(0.2, request_stop, place)

    spec = unlike(ApplyPolicy.SYNC, meets, batch_ms=(10.0, 25.0), num_batches=400)
    hold = Hold(rank=late, kind=Shutdown, until=lambda run: run.workers[1 - late].activity is Activity.ENDED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualRendezvous, "request_stop", request_later)
        run = run_forced(replace(spec, cancel_at_s=0.5), hold)
    assert run.status == "cancelled"
    first, second = (worker.ledger.total_batches for worker in run.simulation.workers)
    assert first == second, "ranks end in the same round"
    assert first > (0.6 if meets else 0.4) / 0.025
    check_run(run)


@pytest.mark.parametrize("meets", [True, False], ids=["meets", "cpu"])
@pytest.mark.parametrize("late", [0, 1])
def test_stop_reaches_sync_ranks_in_different_rounds(meets: bool, late: int) -> None:
    check_end_in_one_round(meets=meets, late=late)


def test_sync_ranks_that_end_as_soon_as_they_are_told_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    next_action = SyncLogic.next_action

    def end_at_once(logic: SyncLogic) -> Any:
        return next_action(logic) if logic._shutdown is None else Exit(hand_in=logic._shutdown.hand_in)

    monkeypatch.setattr(SyncLogic, "next_action", end_at_once)
    with pytest.raises((AssertionError, SimulationError)):
        check_end_in_one_round(meets=True, late=1)


@each_backend
@pytest.mark.parametrize("num_rounds", [1, 5])
def test_stop_reaches_sync_threads_in_different_rounds(
    monkeypatch: pytest.MonkeyPatch, backend: AverageBackend, num_rounds: int
) -> None:
    """Rank 0 has it at once; rank 1 so many rounds later, or with the result of the last; the meeting later still."""
    kept: list[Shutdown] = []
    rounds_left = 0
    handed_in: dict[int, Tensor] = {}
    handle, stepped, hand_in = SyncLogic.handle, SyncLogic.stepped, SyncWorker.hand_in

    def keep(logic: SyncLogic, message: ToWorker) -> None:
        nonlocal rounds_left
        if isinstance(message, Shutdown) and logic._rank == 1 and not logic._is_stopped:
            kept.append(message)
            rounds_left = num_rounds
        else:
            handle(logic, message)

    def step(logic: SyncLogic, *, stop: bool) -> None:
        nonlocal rounds_left
        stepped(logic, stop=stop)
        if logic._rank == 1 and kept:
            rounds_left -= 1
            if stop or rounds_left == 0:
                handle(logic, kept.pop())

    def note(worker: SyncWorker) -> None:
        params = worker.trainer.replica.state().params
        handed_in[worker.seat.rank] = torch.cat([flat.clone().reshape(-1) for flat in params])
        hand_in(worker)

    monkeypatch.setattr(SyncLogic, "handle", keep)
    monkeypatch.setattr(SyncLogic, "stepped", step)
    monkeypatch.setattr(SyncWorker, "hand_in", note)
    decide_later(monkeypatch)
    log = TrainLog()

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        if log.num_calls > 20:
            assert is_running.wait(LIMIT_S)
            handles[0].cancel()
        return log.train_fn(model, batch)

    is_running = threading.Event()
    handles: list[DdpHandle] = []
    handles.append(endless(ApplyPolicy.SYNC, backend, log, train_fn).run())
    is_running.set()
    outcome = finish(handles[0])
    assert outcome.handle.status == "cancelled"
    assert handed_in.keys() == {0, 1}
    assert torch.equal(handed_in[0], handed_in[1]), "ranks end in the same round"
    first, second = outcome.handle.progress().totals.rank_batches
    assert first == second
    assert 2 * first == log.num_calls


def decide_later(patch: pytest.MonkeyPatch) -> None:
    """Let ranks that meet train on for some rounds after ``Shutdown`` has been sent to them."""
    meet, request_stop = GradientMeeting.__call__, GradientMeeting.request_stop
    rounds_left = 0

    def request_later(_meeting: GradientMeeting) -> None:
        nonlocal rounds_left
        rounds_left = 10

    def count_and_meet(meeting: GradientMeeting, *args: Any) -> MeetingResult:
        nonlocal rounds_left
        rounds_left -= 1
        if rounds_left == 0:
            request_stop(meeting)
        return meet(meeting, *args)

    patch.setattr(GradientMeeting, "request_stop", request_later)
    patch.setattr(GradientMeeting, "__call__", count_and_meet)
