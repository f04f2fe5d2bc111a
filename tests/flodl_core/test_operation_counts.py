"""What the engine does for each batch, counted and not timed: a change that makes it do more is seen here.

Counted are calls made by flodl's own code, of Python and of C functions, in a worker's thread; what PyTorch does within
them is not. Reports are left out, since they come by the clock: see ``benchmarks/engine_overhead.py`` for times.
"""

import gc
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from torch import Tensor, nn

import flodl_core
from flodl_core import worker
from flodl_core.channel import ThreadChannel
from flodl_core.data import Permutations
from flodl_core.local_worker import LocalWorker
from flodl_core.messages import EpochPlan, Shutdown, StartEpoch, ToCoordinator, ToWorker
from flodl_core.sync_worker import SyncWorker
from flodl_core.worker import Worker, WorkerSeat
from tests.flodl_core.message_factories import open_round
from tests.flodl_core.training import Samples, configure, linear, mean_squared_error, numbered_samples

PRODUCT = str(Path(flodl_core.__file__).parent)
BATCH_SIZE = 8
FEW, MANY = 50, 250

LOCAL_CALLS = 46.0
SINGLE_CALLS = 53.0
"""Recorded; to be lowered where they can be."""


def count_calls(run: Callable[[], object]) -> int:
    """Calls that flodl's own code makes."""
    num_calls = 0

    def count(frame: FrameType, kind: str, _: Any) -> None:
        nonlocal num_calls
        if kind in ("call", "c_call"):
            caller = frame if kind == "c_call" else frame.f_back
            num_calls += caller is not None and caller.f_code.co_filename.startswith(PRODUCT)

    before = sys.getprofile()
    gc.disable()  # what others have called at each collection would count as calls of whoever is running then
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
        gc.enable()
    return num_calls


def calls_of(kind: type[Worker], num_batches: int, devices: list[str]) -> int:
    """Of a worker that trains so many batches of one epoch and ends."""
    inbox: ThreadChannel[ToWorker] = ThreadChannel()
    outbox: ThreadChannel[ToCoordinator] = ThreadChannel()
    num_trained = 0

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        nonlocal num_trained
        num_trained += 1
        if num_trained == num_batches:
            inbox.send(Shutdown(hand_in=False))
        return mean_squared_error(model, batch)

    samples = numbered_samples(num_batches * BATCH_SIZE)
    job = configure(samples, devices=devices, train_fn=train_fn, batch_size=BATCH_SIZE)._settings.job()
    seat = WorkerSeat(
        rank=0,
        job=job,
        initial=linear(job.devices[0]),
        permutations=Permutations(seed=job.seed, num_samples=job.num_samples),
        inbox=inbox,
        outbox=outbox,
        rendezvous=None,
    )
    made = kind(seat)
    if kind is LocalWorker:
        inbox.send(open_round(0))
    inbox.send(StartEpoch(plan=EpochPlan(epoch=0, offset=0, size=job.epoch_size)))
    try:
        num_calls = count_calls(made.run)
    finally:
        made.close()
    assert made.ledger.total_batches == num_batches
    return num_calls


@pytest.mark.parametrize(
    ("kind", "devices", "most"),
    [
        pytest.param(LocalWorker, ["cpu", "cpu"], LOCAL_CALLS, id="local"),
        pytest.param(SyncWorker, ["cpu"], SINGLE_CALLS, id="single"),
    ],
)
def test_batch_costs_no_more_calls_than_recorded(
    kind: type[Worker], devices: list[str], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "REPORT_S", math.inf)
    few, many = (calls_of(kind, num_batches, devices) for num_batches in (FEW, MANY))
    per_batch = (many - few) / (MANY - FEW)
    assert per_batch <= most, f"{per_batch} calls for each batch"
    assert calls_of(kind, MANY, devices) == many, "a count can be repeated"
