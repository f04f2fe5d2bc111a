"""What to simulate: machines, data, how the run is paced, and what goes wrong."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from flodl_core.arguments import MOST_WHOLE
from flodl_core.errors import ConfigError
from flodl_core.local_options import MAX_SPEED_RATIO, LocalOptions

LEAST_BATCH_MS = 1e-3
MOST_MS = 1e8
"""Somewhat more than a day. Beyond, virtual time has no microseconds left, and is full of the engine's own limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowDown:
    """From an epoch on, a rank runs at ``factor`` of its first speed; a later one of the same rank replaces it.

    Attributes:
        rank: Whose speed changes.
        factor: Of its speed at the start, above 0; above 1 it gets faster.
        epoch: The first epoch, from 0, of which its batches take the new time.
    """

    rank: int
    factor: float
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """One batch takes longer, as when the machine pages or compiles.

    Attributes:
        rank: Whose.
        batch: Which of the rank's batches, from 0.
        ms: How much longer, in milliseconds.
    """

    rank: int
    batch: int
    ms: float


class Moment(StrEnum):
    """When a worker raises."""

    EPOCH = "epoch"
    """Half-way through its first batch of the epoch ``at``."""
    BATCH = "batch"
    """Half-way through its batch number ``at``."""
    SNAPSHOT = "snapshot"
    """Asked for its snapshot number ``at``, before it hands it in."""
    MEETING = "meeting"
    """Waiting for the others at its meeting number ``at``; before it enters, where it would be the last."""
    UPDATE = "update"
    """About to take its average number ``at`` through the CPU."""
    EXIT = "exit"
    """Told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A worker raises.

    Attributes:
        rank: Which.
        moment: When; a moment that never comes leaves the worker alive.
        at: The moment's number, from 0.
    """

    rank: int
    moment: Moment
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSpec:
    """One run. Times in milliseconds, up to ``MOST_MS``.

    Attributes:
        batch_ms: What a full batch takes, by rank, shape (world_size,), at least ``LEAST_BATCH_MS``; a smaller batch
            takes its share of that.
        epoch_size: Samples in an epoch, at least 1.
        batch_size: Samples in a rank's full batch, at least 1.
        num_epochs: Epochs, at least 1.
        options: Policy, backend and pace. With one rank there is nothing to average, whatever they say.
        average_ms: What an average takes: the meeting of an all-reduce from the last arrival to the release, or the
            computing beside training.
        stall_ms: Through the CPU, what each average takes of a worker's own time: half for its snapshot, half to merge.
        jitter: A batch's time is multiplied by a uniform draw from 1 - jitter to 1 + jitter; at least 0, below 1.
        latency_ms: A message takes a uniform draw from 0 to this; first in, first out between the same two.
        slow_downs: Speeds that change.
        stalls: Batches that hang for a while.
        deaths: Workers that raise.
        cancel_at_s: When the run's owner asks it to stop, or None.
        max_steps: Global step at which the run ends, or None.
        max_time_s: When the run ends by itself, or None.
        seed: Of all draws.
    """

    batch_ms: tuple[float, ...]
    epoch_size: int
    batch_size: int
    num_epochs: int
    options: LocalOptions = field(default_factory=LocalOptions)
    average_ms: float = 3.0
    stall_ms: float = 0.1
    jitter: float = 0.0
    latency_ms: float = 0.1
    slow_downs: tuple[SlowDown, ...] = ()
    stalls: tuple[Stall, ...] = ()
    deaths: tuple[Death, ...] = ()
    cancel_at_s: float | None = None
    max_steps: int | None = None
    max_time_s: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated.

        Raises:
            ConfigError: A value is out of its range, or a rank does not exist.
        """
        for fault in self._faults():
            raise ConfigError(fault)

    @property
    def world_size(self) -> int:
        """Number of ranks at the start."""
        return len(self.batch_ms)

    def _faults(self) -> Iterator[str]:
        if not self.batch_ms:
            yield "batch_ms must name at least one rank"
        for rank, ms in enumerate(self.batch_ms):
            yield from _unless_batch_time(f"batch_ms of rank {rank}", ms)
        for name in ("epoch_size", "batch_size", "num_epochs"):
            if getattr(self, name) < 1:
                yield f"{name} must be at least 1, not {getattr(self, name)!r}"
        for name in ("average_ms", "stall_ms", "latency_ms"):
            yield from _unless_duration(name, getattr(self, name))
        if not 0 <= self.jitter < 1:
            yield f"jitter must be at least 0 and below 1, not {self.jitter!r}"
        if self.cancel_at_s is not None:
            yield from _unless_duration("cancel_at_s", self.cancel_at_s, most=MOST_MS / 1e3)
        if self.max_steps is not None and self.max_steps < 1:
            yield f"max_steps must be at least 1, not {self.max_steps!r}"
        if self.max_time_s is not None and not (math.isfinite(self.max_time_s) and self.max_time_s > 0):
            yield f"max_time_s must be positive and finite, not {self.max_time_s!r}"
        yield from self._faults_of_options()
        yield from self._faults_of_events()

    def _faults_of_options(self) -> Iterator[str]:
        ratios, hint = self.options.partition_ratios, self.options.speed_hint
        if ratios is not None and len(ratios) != self.world_size:
            yield f"partition_ratios must have a number for each of {self.world_size} ranks, not {len(ratios)}"
        for ratio in ratios or ():
            if not (math.isfinite(ratio) and ratio > 0):
                yield f"partition_ratios must be positive and finite, not {ratio!r}"
        if hint is not None:
            yield from self._unless_rank("the speed hint", hint[0])
            if not 1 <= hint[1] <= MAX_SPEED_RATIO:
                yield f"the speed hint's ratio must be from 1 to {MAX_SPEED_RATIO:,.0f}, not {hint[1]!r}"
        for name in ("anchor", "max_anchor"):
            if not 1 <= getattr(self.options, name) <= MOST_WHOLE:
                yield f"{name} must be from 1 to 2**63 - 1"

    def _faults_of_events(self) -> Iterator[str]:
        for slow in self.slow_downs:
            yield from self._unless_rank("a slow-down", slow.rank)
            yield from self._unless_epoch("a slow-down", slow.epoch)
            if not (math.isfinite(slow.factor) and slow.factor > 0):
                yield f"a slow-down's factor must be positive and finite, not {slow.factor!r}"
            yield from _unless_batch_time("batch_ms after a slow-down", self.batch_ms[slow.rank] / slow.factor)
        for stall in self.stalls:
            yield from self._unless_rank("a stall", stall.rank)
            yield from _unless_duration("a stall's ms", stall.ms)
        for death in self.deaths:
            yield from self._unless_rank("a death", death.rank)
            if death.moment is Moment.EPOCH:
                yield from self._unless_epoch("a death", death.at)
            elif death.at < 0:
                yield f"a death's number must be at least 0, not {death.at!r}"

    def _unless_rank(self, what: str, rank: int) -> Iterator[str]:
        if not 0 <= rank < self.world_size:
            yield f"{what} names rank {rank!r}; there are ranks 0..{self.world_size - 1}"

    def _unless_epoch(self, what: str, epoch: int) -> Iterator[str]:
        if not 0 <= epoch < self.num_epochs:
            yield f"{what} names epoch {epoch!r}; there are epochs 0..{self.num_epochs - 1}"


def _unless_batch_time(name: str, ms: float) -> Iterator[str]:
    if not LEAST_BATCH_MS <= ms <= MOST_MS:
        yield f"{name} must be from {LEAST_BATCH_MS:g} to {MOST_MS:g}, not {ms:g}"


def _unless_duration(name: str, value: float, *, most: float = MOST_MS) -> Iterator[str]:
    if not 0 <= value <= most:
        yield f"{name} must be from 0 to {most:g}, not {value:g}"
