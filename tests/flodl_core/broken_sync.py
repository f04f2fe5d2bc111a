"""Ways to break sync on purpose, in a test alone: gradients, their weights, and the order of samples."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl_core.data import Permutations
from flodl_core.messages import Entry
from flodl_core.replica import Replica, ReplicaState
from flodl_core.sync_logic import SyncBatch, SyncLogic
from flodl_core.sync_worker import SyncWorker
from flodl_core.worker_ledger import WorkerLedger


def parameters_are_averaged_after_the_step(patch: pytest.MonkeyPatch) -> None:
    """Each rank steps with its own gradient; momentum and second moments stay each rank's own."""
    average = SyncWorker._average

    def step_first(worker: SyncWorker, batch: SyncBatch) -> Any:
        if batch.size > 0:
            worker.trainer.step(worker._global_step)
        return average(worker, batch)

    def take(replica: Replica, has_grad: Sequence[bool]) -> None:
        replica.take_buffers()  # there is no gradient left: the step that follows does nothing

    patch.setattr(SyncWorker, "_average", step_first)
    patch.setattr(Replica, "gradients", Replica.state)
    patch.setattr(Replica, "take_gradients", take)


def _break_weight(patch: pytest.MonkeyPatch, weight: Any) -> None:
    make_entry = WorkerLedger.gradient_entry

    def broken(ledger: WorkerLedger, **kwargs: Any) -> Entry:
        entry = make_entry(ledger, **kwargs)
        return replace(entry, num_samples=weight(entry.num_samples))

    patch.setattr(WorkerLedger, "gradient_entry", broken)


def gradients_are_not_weighted(patch: pytest.MonkeyPatch) -> None:
    _break_weight(patch, lambda num_samples: min(1, num_samples))


def ranks_without_samples_count(patch: pytest.MonkeyPatch) -> None:
    _break_weight(patch, lambda num_samples: max(1, num_samples))


def gradients_are_clipped_before_the_average(patch: pytest.MonkeyPatch) -> None:
    gather = Replica.gradients

    def clipped(replica: Replica) -> ReplicaState:
        nn.utils.clip_grad_norm_(replica.trainable, 0.3)
        return gather(replica)

    patch.setattr(Replica, "gradients", clipped)


def missing_gradients_are_zeros(patch: pytest.MonkeyPatch) -> None:
    """Momentum and weight decay then move a parameter that no rank has a gradient for."""
    take = Replica.take_gradients

    def take_all(replica: Replica, has_grad: Sequence[bool]) -> None:
        take(replica, [True] * len(has_grad))

    patch.setattr(Replica, "take_gradients", take_all)


def schedule_counts_rounds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SyncLogic, "active_ranks", lambda logic: 1)


def every_run_has_its_own_order(patch: pytest.MonkeyPatch) -> None:
    """The order of samples does not follow from the seed."""
    make, calls = Permutations._make, count()

    def other(permutations: Permutations, epoch: int) -> Tensor:
        order = make(permutations, epoch)
        permutations._orders[epoch] = torch.roll(order, next(calls) + 1)
        return permutations._orders[epoch]

    patch.setattr(Permutations, "_make", other)
