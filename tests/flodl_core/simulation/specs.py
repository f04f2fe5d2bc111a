"""Random runs: machines, data, options and mishaps, for hypothesis to draw and to shrink."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from flodl_core.local_options import LocalOptions
from flodl_core.policies import ApplyPolicy
from flodl_core.simulation import Death, Moment, SimulationSpec, SlowDown, Stall

DRIFTS = (0.0, 0.03, 2.0)
"""How far replicas drift apart: not at all, a little, or so far that the guard holds."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much a run may consist of."""

    least_ranks: int
    most_ranks: int
    most_batches: int
    """In an epoch."""
    most_epochs: int


SCALES = (
    Scale(1, 4, most_batches=20, most_epochs=5),
    Scale(2, 4, most_batches=300, most_epochs=3),
    Scale(2, 12, most_batches=40, most_epochs=5),
    Scale(2, 12, most_batches=200, most_epochs=2),
    Scale(13, 64, most_batches=150, most_epochs=2),
)
"""Large worlds have few batches, so that each run is quick."""


def runs(make: Callable[[random.Random], SimulationSpec]) -> st.SearchStrategy[SimulationSpec]:
    """What ``make`` makes of random choices.

    Those of hypothesis can be shrunk, but most are small changes of what it has tried; those of a seed are not.
    """
    return st.randoms(use_true_random=False).map(make) | st.integers(0, 2**64).map(
        lambda seed: make(random.Random(seed))
    )


def whole_run(rng: random.Random) -> SimulationSpec:
    """From one rank and one sample to 64 unlike ranks, left alone until its end."""
    scale = rng.choice(SCALES)
    world_size = rng.randint(scale.least_ranks, scale.most_ranks)
    batch_size = rng.randint(1, 64)
    num_epochs = rng.randint(1, scale.most_epochs)
    return SimulationSpec(
        batch_ms=_speeds(rng, world_size),
        epoch_size=_epoch_size(rng, world_size, batch_size, most_batches=scale.most_batches),
        batch_size=batch_size,
        num_epochs=num_epochs,
        options=_options(rng, world_size),
        average_ms=rng.choice([0.0, 0.5, 3.0, 50.0]),
        stall_ms=rng.choice([0.1, 0.0, 5.0]),
        jitter=rng.choice([0.0, 0.05, 0.9]),
        latency_ms=rng.choice([0.0, 0.1, 5.0, 100.0]),
        slow_downs=_slow_downs(rng, world_size, num_epochs),
        stalls=_stalls(rng, world_size),
        seed=rng.randint(0, 2**32),
    )


def cancelled_run(rng: random.Random) -> SimulationSpec:
    """Its owner asks it to stop, from its start to after its end."""
    spec = whole_run(rng)
    return replace(spec, cancel_at_s=1.2 * rng.random() * plain_time_s(spec))


def limited_run(rng: random.Random) -> SimulationSpec:
    """It ends at a global step, after a time, or at whichever comes first."""
    spec = whole_run(rng)
    max_steps = _step(rng, spec)
    max_time_s = (0.01 + 1.2 * rng.random()) * plain_time_s(spec)
    return rng.choice(
        [
            replace(spec, max_steps=max_steps),
            replace(spec, max_time_s=max_time_s),
            replace(spec, max_steps=max_steps, max_time_s=max_time_s),
        ]
    )


def deadly_run(rng: random.Random) -> SimulationSpec:
    """It loses one worker or several; now and then it is cancelled, or limited, as well."""
    spec = rng.choice([whole_run, whole_run, cancelled_run, limited_run])(rng)
    num_deaths = rng.choice([1, 1, 2, 3, 8])
    return replace(spec, deaths=tuple(_death(rng, spec) for _ in range(num_deaths)))


def plain_time_s(spec: SimulationSpec) -> float:
    """What the run's batches take where all ranks are kept busy, in seconds."""
    batches_per_ms = sum(1 / ms for ms in spec.batch_ms)
    return spec.epoch_size * spec.num_epochs / spec.batch_size / batches_per_ms / 1e3


def _is_rare(rng: random.Random) -> bool:
    return rng.choice([False, False, False, True])


def _speeds(rng: random.Random, world_size: int) -> tuple[float, ...]:
    spread = rng.choice([0.0, 0.3, 1.5])
    return tuple(round(10 ** (0.5 + rng.uniform(-spread, spread)), 3) for _ in range(world_size))


def _epoch_size(rng: random.Random, world_size: int, batch_size: int, *, most_batches: int) -> int:
    if not _is_rare(rng):
        return rng.randint(1, most_batches * batch_size)
    less_than_a_batch, less_than_a_sample_each = rng.randint(1, batch_size), rng.randint(1, world_size)
    last_batch_of_one = rng.randint(0, most_batches) * batch_size + 1
    return rng.choice([less_than_a_batch, less_than_a_sample_each, last_batch_of_one])


def _options(rng: random.Random, world_size: int) -> LocalOptions:
    anchor = rng.choice([1, 2, 3, 5, 10, 20])
    ratios = tuple(10 ** rng.uniform(-2, 1) for _ in range(world_size)) if _is_rare(rng) else None
    return LocalOptions(
        policy=rng.choice([ApplyPolicy.CADENCE, ApplyPolicy.ASYNC, ApplyPolicy.CADENCE, ApplyPolicy.SYNC]),
        meets=rng.choice([False, True]),
        anchor=anchor,
        max_anchor=anchor + rng.choice([180, 0, 3]),
        overhead_target=rng.choice([0.03, 0.01, 0.5]),
        max_batch_diff=rng.choice([None, None, rng.randint(0, 5)]),
        max_overshoot=rng.choice([None, 1000, rng.randint(0, 5)]),
        snapshot_timeout_s=rng.choice([5.0, 0.05]),
        divergence_threshold=rng.choice([0.05, 0.9, None]),
        progressive_dispatch=not _is_rare(rng),
        partition_ratios=ratios,
        speed_hint=(rng.randint(0, world_size - 1), 1 + 9 * rng.random()) if _is_rare(rng) else None,
    )


def _slow_downs(rng: random.Random, world_size: int, num_epochs: int) -> tuple[SlowDown, ...]:
    return tuple(
        SlowDown(
            rank=rng.randint(0, world_size - 1),
            factor=rng.choice([0.5, 0.05, 4.0]),
            epoch=rng.randint(0, num_epochs - 1),
        )
        for _ in range(rng.choice([0, 0, 1, 2]))
    )


def _stalls(rng: random.Random, world_size: int) -> tuple[Stall, ...]:
    return tuple(
        Stall(rank=rng.randint(0, world_size - 1), batch=rng.randint(0, 10), ms=rng.choice([30.0, 300.0, 6_000.0]))
        for _ in range(rng.choice([0, 0, 1, 2]))
    )


def _step(rng: random.Random, spec: SimulationSpec) -> int:
    return rng.randint(1, 1 + spec.num_epochs * -(-spec.epoch_size // spec.batch_size))


def _death(rng: random.Random, spec: SimulationSpec) -> Death:
    moment = rng.choice(list(Moment))
    most = {Moment.EPOCH: spec.num_epochs - 1, Moment.EXIT: 0, Moment.BATCH: 20}.get(moment, 6)
    return Death(rank=rng.randint(0, spec.world_size - 1), moment=moment, at=rng.randint(0, most))
