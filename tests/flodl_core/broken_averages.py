"""Ways to break what an average is, on purpose and in a test alone: a check that does not notice one is no check.

Each is a function of a ``MonkeyPatch``, which takes it back.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl_core import averaging
from flodl_core.averaging import Averager
from flodl_core.messages import Entry
from flodl_core.replica import Replica, ReplicaState
from flodl_core.tally import Tally, tally
from flodl_core.worker_ledger import WorkerLedger

Break = Callable[[pytest.MonkeyPatch], None]


def _everywhere(patch: pytest.MonkeyPatch, original: object, broken: object) -> None:
    """Replace a function under every name that it was imported by."""
    for module in list(sys.modules.values()):
        if module.__name__.startswith(("flodl_core", "tests.flodl_core")):
            for name in [name for name, value in vars(module).items() if value is original]:
                patch.setattr(module, name, broken)


def _break_terms(patch: pytest.MonkeyPatch, change: Callable[[Tally, Sequence[Entry]], Tally]) -> None:
    settle = tally

    def broken(entries: Any, **kwargs: Any) -> Tally | None:
        terms = settle(entries, **kwargs)
        return None if terms is None else change(terms, list(entries))

    _everywhere(patch, settle, broken)


# Who counts, and for how much


def weights_are_batches(patch: pytest.MonkeyPatch) -> None:
    record = WorkerLedger.record

    def record_one(ledger: WorkerLedger, **kwargs: Any) -> None:
        record(ledger, **kwargs)
        ledger._samples_since_entry += 1 - kwargs["num_samples"]

    patch.setattr(WorkerLedger, "record", record_one)


def weights_are_equal(patch: pytest.MonkeyPatch) -> None:
    _break_terms(patch, lambda terms, _: replace(terms, weights=dict.fromkeys(terms.weights, 1)))


def idle_rank_is_summed_in(patch: pytest.MonkeyPatch) -> None:
    def with_zeros(terms: Tally, _: Sequence[Entry]) -> Tally:
        return replace(terms, weights=terms.num_samples) if any(terms.num_samples.values()) else terms

    _break_terms(patch, with_zeros)


def idle_rank_counts_as_one_sample(patch: pytest.MonkeyPatch) -> None:
    _break_terms(patch, lambda terms, _: replace(terms, weights={r: max(1, n) for r, n in terms.num_samples.items()}))


def sick_rank_is_multiplied_by_zero(patch: pytest.MonkeyPatch) -> None:
    def with_sick(terms: Tally, _: Sequence[Entry]) -> Tally:
        weights = {**terms.weights, **dict.fromkeys(terms.excluded, 0)}
        return replace(terms, weights=dict(sorted(weights.items())))

    _break_terms(patch, with_sick)


def sick_rank_is_not_found(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicaState, "is_finite", lambda state: True)


def discarded_windows_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    _break_terms(patch, lambda terms, _: replace(terms, discarded_samples=0))


def what_was_trained_while_left_out_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    discard = WorkerLedger.discard

    def silent(ledger: WorkerLedger) -> int:
        discard(ledger)
        return 0

    patch.setattr(WorkerLedger, "discard", silent)


def sums_run_in_order_of_arrival(patch: pytest.MonkeyPatch) -> None:
    def unsorted(terms: Tally, entries: Sequence[Entry]) -> Tally:
        ranks = [entry.rank for entry in entries if entry.rank in terms.weights]
        return replace(terms, weights={rank: terms.weights[rank] for rank in ranks})

    _break_terms(patch, unsorted)


# A late snapshot


def late_snapshot_counts_only_once_it_is_answered(patch: pytest.MonkeyPatch) -> None:
    """As if the next entry did not hold it yet: it then counts for the one after."""
    make_entry = WorkerLedger.entry

    def forgetful(ledger: WorkerLedger, **kwargs: Any) -> Entry:
        ledger._unanswered = None
        return make_entry(ledger, **kwargs)

    def take_back(ledger: WorkerLedger, entry: Entry) -> None:
        ledger._samples_since_entry += entry.num_samples

    patch.setattr(WorkerLedger, "entry", forgetful)
    patch.setattr(WorkerLedger, "take_back", take_back)


def late_snapshot_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerLedger, "take_back", lambda ledger, entry: None)


# Arithmetic


def short_types_are_summed_in_themselves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(averaging, "_wide", lambda dtype: dtype)


def weighted_sum_forgets_the_last(patch: pytest.MonkeyPatch) -> None:
    add = averaging._weighted_sum

    def all_but_the_last(tensors: Sequence[Tensor], shares: Sequence[float], out: Tensor) -> None:
        few = max(1, len(tensors) - 1)
        add(tensors[:few], shares[:few], out)

    patch.setattr(averaging, "_weighted_sum", all_but_the_last)


# Buffers


def integer_buffers_are_averaged(patch: pytest.MonkeyPatch) -> None:
    make_state, share = Averager._state, Averager._share_buffers

    def mean_of(states: Mapping[int, ReplicaState], terms: Tally) -> Tensor:
        total = sum(terms.weights.values())
        summed = torch.stack([states[rank].integer * weight for rank, weight in terms.weights.items()]).sum(0)
        return torch.div(summed, total, rounding_mode="floor")

    def state(averager: Averager, states: Mapping[int, ReplicaState], terms: Tally) -> ReplicaState:
        return replace(make_state(averager, states, terms), integer=mean_of(states, terms))

    def share_mean(averager: Averager, states: Mapping[int, ReplicaState], terms: Tally) -> None:
        mean = mean_of(states, terms)
        share(averager, states, terms)
        for each in states.values():
            each.integer.copy_(mean)

    patch.setattr(Averager, "_state", state)
    patch.setattr(Averager, "_share_buffers", share_mean)


def equal_buffers_are_averaged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(averaging, "_average_buffers", averaging._weighted_sum)


def buffers_are_averaged_by_differences(patch: pytest.MonkeyPatch) -> None:
    """The first, and the others' differences from it: minus infinity less itself is NaN."""

    def first_and_differences(tensors: Sequence[Tensor], shares: Sequence[float], out: Tensor) -> None:
        out.copy_(tensors[0])
        for tensor, share in zip(tensors[1:], shares[1:], strict=True):
            out.add_(tensor - tensors[0], alpha=share)

    patch.setattr(averaging, "_average_buffers", first_and_differences)


def buffers_are_merged_by_difference(patch: pytest.MonkeyPatch) -> None:
    """As parameters are."""
    merge = Replica.merge

    def broken(replica: Replica, mean: ReplicaState, snapshot: ReplicaState, *, has_trained: bool) -> None:
        floating = tuple(flat.clone() for flat in replica.state().floating)
        merged = [
            now + (mine - then) for now, mine, then in zip(floating, mean.floating, snapshot.floating, strict=True)
        ]
        merge(replica, replace(mean, floating=tuple(merged)), snapshot, has_trained=has_trained)

    patch.setattr(Replica, "merge", broken)


# Parameters: which, and how they are taken


def tied_parameters_are_merged_twice(patch: pytest.MonkeyPatch) -> None:
    """As a loop over all names would do."""
    merge = Replica.merge

    def broken(replica: Replica, mean: ReplicaState, snapshot: ReplicaState, *, has_trained: bool) -> None:
        before = [param.detach().clone() for param in replica.trainable]
        merge(replica, mean, snapshot, has_trained=has_trained)
        names = [id(param) for _, param in replica.model.named_parameters(remove_duplicate=False)]
        with torch.no_grad():
            for param, old in zip(replica.trainable, before, strict=True):
                for _ in range(names.count(id(param)) - 1):
                    param.add_(param - old)

    patch.setattr(Replica, "merge", broken)


def tied_gradients_are_added_under_each_name(patch: pytest.MonkeyPatch) -> None:
    gather = Replica.gradients

    def broken(replica: Replica) -> ReplicaState:
        names = [id(param) for _, param in replica.model.named_parameters(remove_duplicate=False)]
        for param in replica.trainable:
            if param.grad is not None:
                param.grad.mul_(names.count(id(param)))
        return gather(replica)

    patch.setattr(Replica, "gradients", broken)


def frozen_parameters_are_averaged(patch: pytest.MonkeyPatch) -> None:
    make = Replica.__init__

    def with_all(replica: Replica, model: nn.Module) -> None:
        frozen = [param for param in model.parameters() if not param.requires_grad]
        model.requires_grad_(True)
        make(replica, model)
        for param in frozen:
            param.requires_grad_(False)
        # they stay in the flat buffers, but nobody else hears of it
        known = [param.requires_grad for param in replica.trainable]
        for field in ("trainable", "_slots", "_views"):
            setattr(replica, field, list(compress(getattr(replica, field), known)))

    patch.setattr(Replica, "__init__", with_all)


def merge_overwrites(patch: pytest.MonkeyPatch) -> None:
    """What was trained since the snapshot is lost."""
    merge = Replica.merge

    def broken(replica: Replica, mean: ReplicaState, snapshot: ReplicaState, *, has_trained: bool) -> None:
        merge(replica, mean, snapshot, has_trained=False)

    patch.setattr(Replica, "merge", broken)


def merge_adds_half_the_difference(patch: pytest.MonkeyPatch) -> None:
    merge = Replica.merge

    def broken(replica: Replica, mean: ReplicaState, snapshot: ReplicaState, *, has_trained: bool) -> None:
        halves = tuple((target + before) / 2 for target, before in zip(mean.params, snapshot.params, strict=True))
        merge(replica, replace(mean, params=halves), snapshot, has_trained=has_trained)

    patch.setattr(Replica, "merge", broken)
