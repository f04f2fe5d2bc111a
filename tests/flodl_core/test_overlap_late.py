"""A snapshot that comes too late for its average: what it held is in the next one, on both sides of the account."""

import threading

import pytest

from flodl_core import ApplyPolicy, SnapshotLate
from tests.flodl_core.test_overlap import (
    BATCH_SIZE,
    SEED,
    Replayable,
    check_replay,
    each_local_policy,
    momentum,
    wide_mlp,
    wide_samples,
)
from tests.flodl_core.training import LIMIT_S, configure, events_of
from tests.flodl_core.witness import Witness

EPOCH_SIZE = 20 * BATCH_SIZE


class HeldBack:
    """Holds rank 1 in its first batch of the second epoch until averages have been taken without it.

    It streams into that epoch because rank 0 is held in the first until then; so the rounds that are to complete the
    first epoch go by while rank 1 cannot answer.
    """

    def __init__(self, witness: Witness, *, num_averages: int) -> None:
        self._witness = witness
        self._num_averages = num_averages
        self._is_held = threading.Event()
        self._rank_0_batches = 0

    def __call__(self, rank: int, epoch: int) -> None:
        witness = self._witness
        if rank == 0:
            self._rank_0_batches += 1
            if self._rank_0_batches == 3:
                assert self._is_held.wait(LIMIT_S), "rank 1 does not stream into the second epoch"
        elif epoch == 1 and not self._is_held.is_set():
            target = witness.num_averages + self._num_averages
            self._is_held.set()
            witness.wait_for(lambda: witness.num_averages >= target)


def check_late(policy: ApplyPolicy, num_averages: int) -> None:
    """Rank 1's snapshot comes after so many averages were taken without it: nothing is lost or counted twice."""
    samples = wide_samples(EPOCH_SIZE)
    witness = Witness(optim_factory=momentum)
    witness.on_batch = HeldBack(witness, num_averages=num_averages)
    builder = configure(
        samples,
        policy=policy,
        train_fn=witness.train_fn,
        model_factory=wide_mlp,
        optim_factory=witness.make_optimizer,
        batch_size=BATCH_SIZE,
        num_epochs=2,
    )
    outcome = witness.watch(builder.anchor(2).max_overshoot(4).snapshot_timeout_s(0.01).seed(SEED))
    assert 1 in {event.rank for event in events_of(outcome, SnapshotLate)}
    check_replay(Replayable(outcome=outcome, witness=witness, samples=samples, optim_factory=momentum))


@each_local_policy
@pytest.mark.parametrize("num_averages", [1, 2, 3])
def test_late_snapshot_counts_for_the_average_that_holds_it(policy: ApplyPolicy, num_averages: int) -> None:
    check_late(policy, num_averages)
