from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl_core.messages import BatchesDone, Entry
from flodl_core.worker_ledger import WorkerLedger
from tests.flodl_core.message_factories import entry


def _record(
    ledger: WorkerLedger,
    num_samples: int = 8,
    *,
    round_: int = 0,
    epoch: int = 0,
    is_full: bool = True,
    busy_ms: float = 5.0,
    start_s: float = 0.0,
) -> None:
    ledger.record(
        round_=round_,
        epoch=epoch,
        num_samples=num_samples,
        is_full=is_full,
        busy_ms=busy_ms,
        start_s=start_s,
        end_s=start_s + busy_ms / 1e3,
    )


def _report(ledger: WorkerLedger) -> BatchesDone:
    return ledger.report(loss_sum=0.0, scalars={}, lr=0.1)


def test_report_holds_everything_since_the_one_before() -> None:
    ledger = WorkerLedger(3)
    _record(ledger)
    _report(ledger)
    _record(ledger, round_=2, epoch=1, busy_ms=5.0, start_s=10.0)
    _record(ledger, 3, round_=2, epoch=1, is_full=False, busy_ms=2.0, start_s=11.0)
    assert ledger.num_unreported == 2
    report = ledger.report(loss_sum=4.5, scalars={"acc": (1.5, 2)}, lr=0.01, num_syncs=2, sync_ms=0.5)
    assert report == BatchesDone(
        rank=3,
        round=2,
        epoch=1,
        num_batches=2,
        num_samples=11,
        busy_ms=7.0,
        num_full_batches=1,
        full_busy_ms=5.0,
        loss_sum=4.5,
        scalars={"acc": (1.5, 2)},
        lr=0.01,
        start_s=10.0,
        end_s=11.002,
        num_syncs=2,
        sync_ms=0.5,
    )
    assert ledger.num_unreported == 0
    _record(ledger, round_=3, epoch=2, busy_ms=1.0, start_s=12.0)
    after = _report(ledger)
    assert (after.round, after.epoch, after.num_batches, after.num_samples) == (3, 2, 1, 8)
    assert (after.busy_ms, after.num_full_batches, after.full_busy_ms, after.start_s) == (1.0, 1, 1.0, 12.0)


def test_first_batch_of_a_rank_and_smaller_ones_tell_no_speed() -> None:
    ledger = WorkerLedger(0)
    _record(ledger, busy_ms=500.0)
    _record(ledger, busy_ms=5.0)
    _record(ledger, 7, is_full=False, busy_ms=4.0)
    report = _report(ledger)
    assert (report.num_batches, report.busy_ms) == (3, 509.0)
    assert (report.num_full_batches, report.full_busy_ms) == (1, 5.0)


def test_reports_never_mix_rounds_or_epochs() -> None:
    ledger = WorkerLedger(0)
    assert not ledger.must_report_before(round_=0, epoch=0)
    _record(ledger, round_=1, epoch=1)
    assert not ledger.must_report_before(round_=1, epoch=1)
    assert ledger.must_report_before(round_=2, epoch=1)
    assert ledger.must_report_before(round_=1, epoch=2)
    _report(ledger)
    assert not ledger.must_report_before(round_=2, epoch=2)


def test_report_of_nothing_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError, match="nothing to report"):
        _report(WorkerLedger(0))


def test_entry_weighs_what_was_trained_since_the_last_and_keeps_epochs_until_an_average_completes_them() -> None:
    ledger = WorkerLedger(1)
    _record(ledger, epoch=0)
    _record(ledger, epoch=0)
    assert ledger.entry(round_=0) == entry(1, round_=0, num_samples=16, total_batches=2, completed={0: 16})
    ledger.averaged(())
    assert ledger.entry(round_=1) == entry(1, round_=1, num_samples=0, total_batches=2, completed={0: 16})
    _record(ledger, epoch=1)
    ledger.averaged((0,))
    assert ledger.batches_since_entry == 1
    assert ledger.entry(round_=2, is_finite=False) == entry(
        1, round_=2, total_batches=3, completed={1: 8}, is_finite=False
    )
    assert ledger.batches_since_entry == 0


def test_entry_does_not_change_after_it_was_handed_in() -> None:
    ledger = WorkerLedger(0)
    _record(ledger)
    handed_in = ledger.entry(round_=0)
    _record(ledger)
    assert handed_in.completed == {0: 8}


def test_epoch_that_the_rank_took_no_part_in_may_be_averaged() -> None:
    ledger = WorkerLedger(0)
    ledger.averaged((0, 1))
    assert ledger.entry(round_=0).completed == {}


def test_samples_of_an_entry_that_came_too_late_count_for_the_next() -> None:
    ledger = WorkerLedger(0)
    _record(ledger)
    late = ledger.entry(round_=0)
    _record(ledger, 3, is_full=False)
    ledger.take_back(late)
    assert ledger.entry(round_=1).num_samples == 11


def test_entry_without_an_answer_by_the_next_came_too_late_and_its_refusal_adds_nothing() -> None:
    ledger = WorkerLedger(0)
    _record(ledger)
    late = ledger.entry(round_=0)
    assert ledger.entry(round_=1).num_samples == 8, "the replica that is handed in holds them"
    ledger.take_back(late)
    ledger.averaged(())
    assert ledger.entry(round_=2).num_samples == 0


def test_gradient_enters_with_the_batch_that_is_not_recorded_yet() -> None:
    ledger = WorkerLedger(0)
    _record(ledger)
    assert ledger.gradient_entry(round_=1, num_samples=5, is_finite=True) == entry(
        0, round_=1, num_samples=5, total_batches=2
    )
    without_samples = ledger.gradient_entry(round_=1, num_samples=0, is_finite=False)
    assert without_samples == entry(0, round_=1, num_samples=0, total_batches=1, is_finite=False)
    assert ledger.total_batches == 1


@given(st.lists(st.sampled_from(["batch", "report", "entry", "averaged", "late"]), max_size=60))
def test_nothing_is_lost_or_counted_twice(steps: list[str]) -> None:
    ledger = WorkerLedger(0)
    trained: Counter[int] = Counter()
    reported: Counter[int] = Counter()
    in_averages = 0
    waiting: Entry | None = None
    late: list[Entry] = []  # not refused yet
    for number, step in enumerate(steps):
        epoch = number // 20
        if ledger.must_report_before(round_=0, epoch=epoch) or (step == "report" and ledger.num_unreported):
            report = _report(ledger)
            reported[report.epoch] += report.num_samples
        if step == "batch":
            _record(ledger, number + 1, epoch=epoch)
            trained[epoch] += number + 1
        elif step == "entry":
            late += [waiting] if waiting is not None else []
            waiting = ledger.entry(round_=0)
        elif step == "averaged" and waiting is not None:
            ledger.averaged(())
            in_averages, waiting = in_averages + waiting.num_samples, None
        elif step == "late" and late:
            ledger.take_back(late.pop(0))
        elif step == "late" and waiting is not None:
            ledger.take_back(waiting)
            waiting = None
    if ledger.num_unreported:
        report = _report(ledger)
        reported[report.epoch] += report.num_samples
    last: Entry = ledger.entry(round_=1)
    assert reported == trained
    assert last.completed == trained
    assert in_averages + last.num_samples == trained.total()
