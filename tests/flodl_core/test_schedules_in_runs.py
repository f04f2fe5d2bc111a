"""Schedules as workers use them: where they are asked, and a rate that follows the evaluation."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable

from flodl_core import (
    ApplyPolicy,
    AverageBackend,
    CosineScheduler,
    PlateauScheduler,
    StepWindow,
    WarmupScheduler,
    WorkerContext,
)
from tests.flodl_core.training import (
    LIMIT_S,
    LR,
    configure,
    events_of,
    every_local_way,
    every_way,
    numbered_samples,
    train,
)

NUM_SAMPLES = 100
BATCH_SIZE = 8
NUM_EPOCHS = 4
TOTAL = NUM_EPOCHS * math.ceil(NUM_SAMPLES / BATCH_SIZE)


class Asked:
    """A schedule of one worker that remembers where it was asked."""

    def __init__(self, schedule: Callable[[int], float]) -> None:
        self._schedule = schedule
        self.positions: list[int] = []

    def __call__(self, position: int) -> float:
        self.positions.append(position)
        return self._schedule(position)


@every_local_way
def test_positions_go_forward_within_the_run(policy: ApplyPolicy, backend: AverageBackend) -> None:
    asked: list[Asked] = []

    def make(world_size: int) -> Asked:
        assert world_size == 2
        asked.append(Asked(WarmupScheduler(CosineScheduler(total=TOTAL - 5), num_warmup=5)))
        return asked[-1]

    builder = configure(numbered_samples(NUM_SAMPLES), policy=policy, backend=backend, devices=("cpu", "cpu@2"))
    train(builder.batch_size(BATCH_SIZE).num_epochs(NUM_EPOCHS).scheduler(make))

    assert len(asked) == 2, "each worker has a schedule of its own"
    for schedule in asked:
        assert schedule.positions == sorted(schedule.positions)
        assert schedule.positions[0] == 0
        assert schedule.positions[-1] < TOTAL


@every_way
def test_plateau_gives_all_workers_the_same_rate_in_an_epoch(policy: ApplyPolicy, backend: AverageBackend) -> None:
    plateau = PlateauScheduler(patience=1, factor=0.5)
    has_dropped = threading.Event()

    def observe(loss: float) -> None:
        if plateau.observe(loss) < 1.0:
            has_dropped.set()

    def begin_epoch(epoch: int, worker: WorkerContext) -> None:
        if epoch == NUM_EPOCHS - 1:  # epochs 0 and 1 are in averages by now: their evaluations are sure to come
            assert has_dropped.wait(LIMIT_S)
        factor = plateau.at_epoch(epoch)
        worker.set_scheduler(lambda position: factor)

    builder = configure(numbered_samples(NUM_SAMPLES), policy=policy, backend=backend, devices=("cpu", "cpu@2"))
    builder.batch_size(BATCH_SIZE).num_epochs(NUM_EPOCHS).epoch_fn(begin_epoch)
    builder.eval_fn(lambda model: {"loss": 1.0}).metrics_fn(lambda metrics: observe(metrics.eval["loss"]))
    outcome = train(builder)

    rates = defaultdict(set)
    for window in events_of(outcome, StepWindow):
        rates[window.epoch].add(window.lr)
    assert all(len(in_epoch) == 1 for in_epoch in rates.values()), "workers differ within an epoch"
    assert rates[0] == {LR}
    assert max(rates[NUM_EPOCHS - 1]) <= LR / 2
    assert plateau.lr == 0.5 ** (NUM_EPOCHS - 1), "one drop for each epoch but the first"
