"""Ways to break how a run goes on and ends (law 6), its epochs, limits and figures, on purpose and in a test alone.

Each is a function of a ``MonkeyPatch``, which takes it back.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from flodl_core import local_coordinator, run_book
from flodl_core.commands import Command
from flodl_core.coordinator import Coordinator
from flodl_core.dealer import Dealer
from flodl_core.epoch_metrics import EpochMetrics
from flodl_core.events import SyncEvent
from flodl_core.guard import ConvergenceGuard
from flodl_core.local_coordinator import LocalCoordinator
from flodl_core.messages import (
    BatchesDone,
    Payload,
    RequestParams,
    Shutdown,
    StartEpoch,
    ToCoordinator,
    ToWorker,
    WindowDone,
    WorkerExiting,
)
from flodl_core.overshoot import OvershootLimit
from flodl_core.pace import Pace
from flodl_core.run_book import RunBook
from flodl_core.simulation.rendezvous import Guest, VirtualRendezvous
from flodl_core.snapshot_round import SnapshotRound
from flodl_core.sync_coordinator import SyncCoordinator
from flodl_core.worker_logic import Action, BeginEpoch, WorkerLogic

# Law 6


def _on_the_way(patch: pytest.MonkeyPatch, change: Callable[[ToCoordinator], ToCoordinator | None]) -> None:
    handle = Coordinator.handle

    def handle_changed(coordinator: Coordinator, message: ToCoordinator, now_s: float) -> list[Command]:
        changed = change(message)
        return [] if changed is None else handle(coordinator, changed, now_s)

    patch.setattr(Coordinator, "handle", handle_changed)


def ends_of_windows_are_lost(patch: pytest.MonkeyPatch) -> None:
    _on_the_way(patch, lambda message: None if isinstance(message, WindowDone) else message)


def reports_are_lost(patch: pytest.MonkeyPatch) -> None:
    _on_the_way(patch, lambda message: None if isinstance(message, BatchesDone) and message.rank == 1 else message)


def deaths_are_lost(patch: pytest.MonkeyPatch) -> None:
    def forget(message: ToCoordinator) -> ToCoordinator:
        return replace(message, failure=None) if isinstance(message, WorkerExiting) else message

    _on_the_way(patch, forget)


def one_rank_is_not_released(patch: pytest.MonkeyPatch) -> None:
    in_any_order = VirtualRendezvous._in_any_order

    def leave_one(rendezvous: VirtualRendezvous, guests: Sequence[Guest]) -> list[Guest]:
        return in_any_order(rendezvous, guests)[1:]

    patch.setattr(VirtualRendezvous, "_in_any_order", leave_one)


def rounds_do_not_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LocalCoordinator, "_announce", lambda coordinator, round_: None)


def _on_the_way_back(patch: pytest.MonkeyPatch, kind: type[ToWorker]) -> None:
    """Lose what is sent to rank 0."""
    send = Coordinator._send

    def send_some(coordinator: Coordinator, rank: int, message: ToWorker) -> None:
        if not (isinstance(message, kind) and rank == 0):
            send(coordinator, rank, message)

    patch.setattr(Coordinator, "_send", send_some)


def chunks_are_lost(patch: pytest.MonkeyPatch) -> None:
    _on_the_way_back(patch, StartEpoch)


def requests_are_lost(patch: pytest.MonkeyPatch) -> None:
    _on_the_way_back(patch, RequestParams)


def one_rank_is_not_told_to_end(patch: pytest.MonkeyPatch) -> None:
    _on_the_way_back(patch, Shutdown)


def limit_of_time_is_waited_for_after_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Coordinator, "next_deadline_s", property(lambda coordinator: coordinator._ends_s))


def limits_of_snapshots_never_grow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SnapshotRound, "patience", 1)


# Rounds and epochs


def rounds_are_skipped(patch: pytest.MonkeyPatch) -> None:
    close = LocalCoordinator._average_event

    def close_another(coordinator: LocalCoordinator, message: Any) -> None:
        close(coordinator, replace(message, round=message.round + (message.round > 1)))

    patch.setattr(LocalCoordinator, "_average_event", close_another)


def averages_of_gradients_go_unreported(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SyncCoordinator, "_settle", Coordinator._settle)


def epochs_begin_twice(patch: pytest.MonkeyPatch) -> None:
    next_action = WorkerLogic.next_action
    again: set[WorkerLogic] = set()

    def next_or_again(logic: WorkerLogic) -> Action:
        action = next_action(logic)
        if isinstance(action, BeginEpoch) and logic not in again:
            again.add(logic)
            logic._begun_epoch -= 1
        return action

    patch.setattr(WorkerLogic, "next_action", next_or_again)


def epochs_without_work_do_not_begin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dealer, "epochs_without_work", lambda dealer, rank, epochs: [])


def metrics_come_out_of_order(patch: pytest.MonkeyPatch) -> None:
    end_epochs = Coordinator._end_epochs
    held: list[int] = []

    def end_pairs(coordinator: Coordinator, epochs: Sequence[int], payload: Payload | None) -> None:
        held.extend(epochs)
        if len(held) == 2:
            end_epochs(coordinator, held[::-1], payload)

    patch.setattr(Coordinator, "_end_epochs", end_pairs)


def epochs_are_reported_too_early(patch: pytest.MonkeyPatch) -> None:
    end_epochs = Coordinator._end_epochs

    def end_all(coordinator: Coordinator, epochs: Sequence[int], payload: Payload | None) -> None:
        if 0 in epochs:
            end_epochs(coordinator, range(coordinator.plan.num_epochs), payload)

    patch.setattr(Coordinator, "_end_epochs", end_all)


def ranks_are_told_to_end_twice(patch: pytest.MonkeyPatch) -> None:
    complete = LocalCoordinator._complete

    def complete_twice(coordinator: LocalCoordinator) -> None:
        complete(coordinator)
        for rank in sorted(coordinator.members):
            coordinator._send(rank, Shutdown(hand_in=False))

    patch.setattr(LocalCoordinator, "_complete", complete_twice)


def failed_runs_call_themselves_completed(patch: pytest.MonkeyPatch) -> None:
    stop = Coordinator._stop
    patch.setattr(Coordinator, "_stop", lambda coordinator, status: stop(coordinator, "completed"))


def training_goes_on_after_a_stop(patch: pytest.MonkeyPatch) -> None:
    next_action = WorkerLogic.next_action

    def next_without_shutdown(logic: WorkerLogic) -> Action:
        shutdown = logic._shutdown
        if logic.has_data:
            logic._shutdown = None
        action = next_action(logic)
        logic._shutdown = shutdown
        return action

    patch.setattr(WorkerLogic, "next_action", next_without_shutdown)


# Limits


def overshoot_has_no_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OvershootLimit, "limit", 10**6)


def ranks_are_throttled_for_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(local_coordinator, "is_too_far_ahead", lambda *args: True)


def guard_never_holds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConvergenceGuard, "observe", lambda guard, divergence: True)


def guard_holds_nothing(patch: pytest.MonkeyPatch) -> None:
    close_round = Pace.close_round
    patch.setattr(
        Pace, "close_round", lambda pace, work, *, average_ms, hold: close_round(pace, work, average_ms=average_ms)
    )


def steps_are_not_limited(patch: pytest.MonkeyPatch) -> None:
    init = Dealer.__init__

    def init_without(dealer: Dealer, *args: Any, **kwargs: Any) -> None:
        init(dealer, *args, **kwargs | {"max_batches": None})

    patch.setattr(Dealer, "__init__", init_without)


def rounds_count_as_a_step_of_each_rank(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SyncCoordinator, "_steps_of_round", lambda coordinator, num_samples: coordinator.plan.world_size)


# Figures


def step_windows_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunBook, "close_windows", lambda book, now_s: [])


def efficiency_is_more_than_can_be(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run_book, "capacity_efficiency", lambda samples, busy_ms, wall_ms: 1.5)


def _in_metrics(patch: pytest.MonkeyPatch, change: Callable[[EpochMetrics], EpochMetrics]) -> None:
    end_epoch = RunBook.end_epoch
    patch.setattr(RunBook, "end_epoch", lambda book, epoch: change(end_epoch(book, epoch)))


def shares_do_not_sum_to_one(patch: pytest.MonkeyPatch) -> None:
    def change(metrics: EpochMetrics) -> EpochMetrics:
        return replace(metrics, per_rank_batch_share=tuple(share / 2 for share in metrics.per_rank_batch_share))

    _in_metrics(patch, change)


def shares_are_of_other_ranks(patch: pytest.MonkeyPatch) -> None:
    _in_metrics(patch, lambda metrics: replace(metrics, per_rank_batch_share=metrics.per_rank_batch_share[::-1]))


def waits_are_negative(patch: pytest.MonkeyPatch) -> None:
    emit = Coordinator._emit

    def emit_negative(coordinator: Coordinator, event: Any) -> None:
        if isinstance(event, SyncEvent):
            event = replace(event, wait_ms={rank: -ms for rank, ms in event.wait_ms.items()})
        emit(coordinator, event)

    patch.setattr(Coordinator, "_emit", emit_negative)
