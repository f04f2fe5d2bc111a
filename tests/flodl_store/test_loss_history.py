from __future__ import annotations

import math

from flodl_store.database import Database
from flodl_store.loss_history import losses_by_epoch
from flodl_store.writer import RunWriter
from tests.flodl_store.rows import epoch, running


def test_each_run_has_its_losses_in_the_order_of_epochs(db: Database) -> None:
    one, other, empty = (running(db) for _ in range(3))
    RunWriter(db, one).write([epoch(0, avg_loss=0.5), epoch(1, avg_loss=math.nan), epoch(2, avg_loss=None)])
    RunWriter(db, other).write([epoch(0, avg_loss=2.0)])
    losses = losses_by_epoch(db, [one, other, empty])
    assert (losses[other], losses[empty]) == ([2.0], [])
    assert losses[one][0] == 0.5
    assert math.isnan(losses[one][1] or 0.0)
    assert losses[one][2] is None


def test_an_epoch_that_was_trained_again_counts_once(db: Database) -> None:
    run_id = running(db)
    RunWriter(db, run_id).write([epoch(0, avg_loss=2.0), epoch(1, avg_loss=1.5), epoch(1, avg_loss=1.0)])
    assert losses_by_epoch(db, [run_id]) == {run_id: [2.0, 1.0]}


def test_a_long_run_is_thinned_from_its_first_to_its_last_epoch(db: Database) -> None:
    run_id = running(db)
    RunWriter(db, run_id).write([epoch(number, avg_loss=float(number)) for number in range(101)])
    assert losses_by_epoch(db, [run_id], most=5)[run_id] == [0.0, 25.0, 50.0, 75.0, 100.0]
