"""Random runs: machines, data, options and mishaps, for hypothesis to draw and to shrink."""

import random

from hypothesis import strategies as st

from flodl_core.local_options import LocalOptions
from flodl_core.policies import ApplyPolicy
from flodl_core.simulation import Death, Moment, SimulationSpec, SlowDown, Stall

RARELY = (False, False, False, True)
"""The first is what hypothesis shrinks to."""


@st.composite
def specs(draw: st.DrawFn) -> SimulationSpec:
    """From one rank and one sample to 64 unlike ranks, large worlds with few samples, so that each is quick."""
    rng = draw(st.randoms(use_true_random=False))
    world_size = draw(st.integers(1, 4) | st.integers(1, 12) | st.integers(1, 12) | st.integers(13, 64))
    batch_size = draw(st.integers(1, 64))
    is_large = world_size > 12
    num_epochs = draw(st.integers(1, 2 if is_large else 5))
    return SimulationSpec(
        batch_ms=_speeds(rng, world_size, like=draw(st.booleans())),
        epoch_size=draw(_epoch_sizes(world_size, batch_size, most_batches=100 if is_large else 40)),
        batch_size=batch_size,
        num_epochs=num_epochs,
        options=draw(_options(rng, world_size)),
        average_ms=draw(st.sampled_from([0.0, 0.5, 3.0, 50.0])),
        stall_ms=draw(st.sampled_from([0.1, 0.0, 5.0])),
        jitter=draw(st.sampled_from([0.0, 0.05, 0.9])),
        latency_ms=draw(st.sampled_from([0.0, 0.1, 5.0, 100.0])),
        slow_downs=draw(_slow_downs(world_size, num_epochs)),
        stalls=draw(_stalls(world_size)),
        seed=draw(st.integers(0, 2**32)),
    )


def _speeds(rng: random.Random, world_size: int, *, like: bool) -> tuple[float, ...]:
    spread = 0 if like else 1
    return tuple(round(10 ** (0.5 + spread * rng.uniform(-1.5, 1.5)), 3) for _ in range(world_size))


def _epoch_sizes(world_size: int, batch_size: int, *, most_batches: int) -> st.SearchStrategy[int]:
    return (
        st.integers(1, most_batches * batch_size)
        | st.integers(1, batch_size)  # less than a batch
        | st.integers(1, world_size)  # less than a sample for each rank
        | st.integers(0, most_batches).map(lambda num: num * batch_size + 1)  # a last batch of one
    )


@st.composite
def _options(draw: st.DrawFn, rng: random.Random, world_size: int) -> LocalOptions:
    anchor = draw(st.integers(1, 20))
    has_ratios, has_hint = draw(st.sampled_from(RARELY)), draw(st.sampled_from(RARELY))
    return LocalOptions(
        policy=draw(st.sampled_from([ApplyPolicy.CADENCE, ApplyPolicy.ASYNC, ApplyPolicy.SYNC])),
        meets=draw(st.booleans()),
        anchor=anchor,
        max_anchor=anchor + draw(st.sampled_from([180, 0, 3])),
        overhead_target=draw(st.sampled_from([0.03, 0.01, 0.5])),
        max_batch_diff=draw(st.none() | st.integers(0, 5)),
        max_overshoot=draw(st.none() | st.integers(0, 5) | st.just(1000)),
        snapshot_timeout_s=draw(st.sampled_from([5.0, 0.05])),
        divergence_threshold=draw(st.sampled_from([0.05, 0.9, None])),
        progressive_dispatch=not draw(st.sampled_from(RARELY)),
        partition_ratios=tuple(10 ** rng.uniform(-2, 1) for _ in range(world_size)) if has_ratios else None,
        speed_hint=(rng.randrange(world_size), 1 + 9 * rng.random()) if has_hint else None,
    )


def _slow_downs(world_size: int, num_epochs: int) -> st.SearchStrategy[tuple[SlowDown, ...]]:
    slow_down = st.builds(
        SlowDown,
        rank=st.integers(0, world_size - 1),
        factor=st.sampled_from([0.5, 0.05, 4.0]),
        epoch=st.integers(0, num_epochs - 1),
    )
    return st.lists(slow_down, max_size=2).map(tuple)


def _stalls(world_size: int) -> st.SearchStrategy[tuple[Stall, ...]]:
    stall = st.builds(
        Stall,
        rank=st.integers(0, world_size - 1),
        batch=st.integers(0, 10),
        ms=st.sampled_from([30.0, 300.0, 6_000.0]),
    )
    return st.lists(stall, max_size=2).map(tuple)


def deaths(spec: SimulationSpec) -> st.SearchStrategy[tuple[Death, ...]]:
    """One worker that raises, or several, or one of which several moments are named: the first to come counts."""
    return st.lists(st.sampled_from(Moment).flatmap(lambda moment: _death(spec, moment)), min_size=1, max_size=4).map(
        tuple
    )


def _death(spec: SimulationSpec, moment: Moment) -> st.SearchStrategy[Death]:
    at = {Moment.EPOCH: st.integers(0, spec.num_epochs - 1), Moment.EXIT: st.just(0)}
    numbers = at.get(moment, st.integers(0, 3) | st.integers(0, 20))
    return st.builds(Death, rank=st.integers(0, spec.world_size - 1), moment=st.just(moment), at=numbers)


def drifts() -> st.SearchStrategy[float]:
    """How far replicas drift apart at most, for ``Recording``: not at all, a little, or so far that the guard holds."""
    return st.sampled_from([0.0, 0.04, 2.0])


def plain_time_s(spec: SimulationSpec) -> float:
    """What the run's batches take where all ranks are kept busy, in seconds."""
    batches_per_ms = sum(1 / ms for ms in spec.batch_ms)
    return spec.epoch_size * spec.num_epochs / spec.batch_size / batches_per_ms / 1e3
