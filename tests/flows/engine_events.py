"""Events and epochs of the engine as tests need them."""

from __future__ import annotations

from flodl_core import EpochMetrics, StepWindow, SyncEvent
from flodl_core.idle_time import IdleMs

STEP = StepWindow(
    time_s=1.0,
    rank=0,
    epoch=0,
    global_step=4,
    loss=0.5,
    lr=0.1,
    samples_per_s=160.0,
    num_batches=2,
    num_samples=32,
    busy_ms=200.0,
    start_s=0.75,
    end_s=0.98,
    idle=IdleMs(sync=3.0, wait=20.0),
)
SYNC = SyncEvent(
    time_s=1.5,
    round=7,
    epoch=None,
    global_step=4,
    num_syncs=1,
    duration_ms=3.0,
    wait_ms={0: 1.0, 1: 0.5},
    weights={0: 32, 1: 16},
    divergence={0: 0.01, 1: 0.02},
    cosine={0: 0.999, 1: 0.998},
    magnitude={0: -0.5, 1: 0.25},
    excluded=(),
    anchor=10,
)
EPOCH = EpochMetrics(
    epoch=0,
    avg_loss=0.5,
    epoch_ms=1500.0,
    scalars={"grad": 1.5},
    per_rank=({"grad": 1.0}, {}),
    per_rank_loss=(0.4, float("nan")),
    per_rank_throughput=(0.16, 0.08),
    per_rank_batch_share=(2 / 3, 1 / 3),
    per_rank_busy_ms=(200.0, 210.0),
    devices=("cpu", "cpu@2"),
    lr=0.1,
    num_batches=3,
    num_samples=48,
    capacity_efficiency=0.97,
    eval={"accuracy": 0.9},
)
