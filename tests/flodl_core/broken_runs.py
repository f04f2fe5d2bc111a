"""Ways to break who trains what and how it is counted (laws 1, 3 and 4), on purpose and in a test alone.

Each is a function of a ``MonkeyPatch``, which takes it back.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from flodl_core.chunk_pool import ChunkPool
from flodl_core.coordinator import Coordinator
from flodl_core.events import Event
from flodl_core.local_coordinator import LocalCoordinator
from flodl_core.messages import Averaged, BatchesDone, Entry, EpochPlan
from flodl_core.run_book import RunBook
from flodl_core.sliced_pool import SlicedPool
from flodl_core.sync_coordinator import SyncCoordinator
from flodl_core.sync_logic import SyncBatch, SyncLogic
from flodl_core.worker_ledger import WorkerLedger

Break = Callable[[pytest.MonkeyPatch], None]


# Law 1


def chunks_overlap(patch: pytest.MonkeyPatch) -> None:
    take = ChunkPool.take

    def take_again(pool: ChunkPool, size: int, rank: int) -> tuple[int, int] | None:
        taken = take(pool, size, rank)
        return taken and (max(0, taken[0] - 1), taken[1])

    patch.setattr(ChunkPool, "take", take_again)


def slices_overlap(patch: pytest.MonkeyPatch) -> None:
    cut = SlicedPool.__init__

    def cut_all_from_the_start(pool: SlicedPool, sizes: Iterable[int]) -> None:
        cut(pool, list(sizes))
        pool._starts = [0] * len(pool._starts)

    patch.setattr(SlicedPool, "__init__", cut_all_from_the_start)


def ranks_train_the_same_part_of_a_round(patch: pytest.MonkeyPatch) -> None:
    batch = SyncLogic._batch

    def batch_of_the_first(logic: SyncLogic, plan: EpochPlan, done: int) -> SyncBatch:
        return replace(batch(logic, plan, done), offset=plan.offset + done)

    patch.setattr(SyncLogic, "_batch", batch_of_the_first)


# Law 3


def averages_forget_what_was_trained_after_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    averaged = WorkerLedger.averaged

    def forget(ledger: WorkerLedger, epochs: Iterable[int]) -> None:
        averaged(ledger, epochs)
        ledger._samples_since_entry = 0

    patch.setattr(WorkerLedger, "averaged", forget)


def late_snapshots_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    def forget(ledger: WorkerLedger, entry: Entry) -> None:
        if ledger._unanswered is entry:
            ledger._unanswered = None

    patch.setattr(WorkerLedger, "take_back", forget)


def what_was_averaged_is_entered_again(patch: pytest.MonkeyPatch) -> None:
    enter = WorkerLedger.entry

    def enter_and_keep(ledger: WorkerLedger, **kwargs: Any) -> Entry:
        entry = enter(ledger, **kwargs)
        ledger._samples_since_entry = entry.num_samples
        return entry

    patch.setattr(WorkerLedger, "entry", enter_and_keep)


def answers_to_one_rank_are_lost(patch: pytest.MonkeyPatch) -> None:
    answer = LocalCoordinator._send_update

    def answer_others(coordinator: LocalCoordinator, rank: int, message: Averaged) -> None:
        if rank > 0:
            answer(coordinator, rank, message)

    patch.setattr(LocalCoordinator, "_send_update", answer_others)


def nobody_hands_in(patch: pytest.MonkeyPatch) -> None:
    _hand_in(patch, lambda ranks: ())


def one_rank_hands_in(patch: pytest.MonkeyPatch) -> None:
    _hand_in(patch, lambda ranks: sorted(ranks)[:1])


def _hand_in(patch: pytest.MonkeyPatch, choose: Callable[[Iterable[int]], Iterable[int]]) -> None:
    shut_down = Coordinator._shut_down

    def shut_down_some(coordinator: Coordinator, *, hand_in: Iterable[int]) -> None:
        shut_down(coordinator, hand_in=choose(hand_in))

    patch.setattr(Coordinator, "_shut_down", shut_down_some)


# Law 4


def _book(patch: pytest.MonkeyPatch, change: Callable[[BatchesDone], list[BatchesDone]]) -> None:
    add = RunBook.add

    def add_changed(book: RunBook, report: BatchesDone, now_s: float) -> list[Event]:
        return [event for each in change(report) for event in add(book, each, now_s)]

    patch.setattr(RunBook, "add", add_changed)


def reports_are_counted_twice(patch: pytest.MonkeyPatch) -> None:
    _book(patch, lambda report: [report, report])


def reports_are_dropped(patch: pytest.MonkeyPatch) -> None:
    _book(patch, lambda report: [report][report.rank == 1 :])


def reports_are_booked_for_another_rank(patch: pytest.MonkeyPatch) -> None:
    _book(patch, lambda report: [replace(report, rank=0)])


def averages_are_counted_as_batches(patch: pytest.MonkeyPatch) -> None:
    on_averaged = LocalCoordinator._on_averaged

    def count(coordinator: LocalCoordinator, message: Averaged) -> None:
        coordinator.book._num_batches += 1
        on_averaged(coordinator, message)

    patch.setattr(LocalCoordinator, "_on_averaged", count)


def averages_of_gradients_are_counted_as_batches(patch: pytest.MonkeyPatch) -> None:
    count_syncs = SyncCoordinator._count_syncs

    def count(coordinator: SyncCoordinator, round_: int, num_syncs: int, sync_ms: float) -> None:
        coordinator.book._num_batches += num_syncs
        count_syncs(coordinator, round_, num_syncs, sync_ms)

    patch.setattr(SyncCoordinator, "_count_syncs", count)


def global_step_lacks_late_ranks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LocalCoordinator, "_with_absent", lambda coordinator, message: message)
