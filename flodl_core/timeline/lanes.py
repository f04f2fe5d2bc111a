"""How each rank spent its time: training, or idle and why.

A rank's lane divides the time from the run's start to its end without gap or overlap. It is made of the run's step
windows: each says when its first batch began and its last one ended, how long the rank was busy in between, and what
the worker measured of its waits. Time before the first batch is ``start``, time after the last one ``end``. What
nobody measured is ``unknown``: the engine's own work between batches, ``epoch_fn``, a thread that was not scheduled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from flodl_core.events import StepWindow
from flodl_core.thinned_series import ThinnedSeries

MIN_HOLE_S = 0.05
"""Shortest stretch without a batch, between two step windows, that is a span of its own."""


class IdleCause(StrEnum):
    """Why a rank did not train."""

    SYNC = "sync"
    """It took part in an average: averaging, snapshot, merge; in sync through the CPU also the wait for the others."""
    WAIT = "wait"
    """It had data, and waited for others at a meeting, or after being throttled."""
    LOAD = "load"
    """A slow dataset had not its batch ready."""
    NO_DATA = "no data"
    """It had been dealt nothing more to train on."""
    START = "start"
    """Its first batch had not begun: threads, model and optimizer are being made."""
    END = "end"
    """Its last batch was over, and the run was not."""
    UNKNOWN = "unknown"
    """None of these: see the module."""


CAUSES = tuple(IdleCause)
_SPENT_FIRST = (IdleCause.NO_DATA, IdleCause.WAIT, IdleCause.LOAD, IdleCause.SYNC)
"""Measured causes in the order in which they fill a hole: long waits leave holes, averages rarely do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleGap:
    """Time in which a rank did not train, with its cause.

    Attributes:
        rank: Whose it is.
        start_s: It lies between this time, ...
        end_s: ... and this, in seconds since the run started. Where it fills all of it, the rank did nothing else;
            short waits are known by their sum over a step window (0.2 s, longer in runs of hours), not by their place.
        cause: Why.
        idle_ms: How long it was, of at most the time between the two.
    """

    rank: int
    start_s: float
    end_s: float
    cause: IdleCause
    idle_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSpan:
    """A piece of a lane: ``train_ms`` and ``idle_ms`` add up to its length.

    Attributes:
        idle_ms: By cause, in the order of ``CAUSES``, shape (len(CAUSES),).
    """

    start_s: float
    end_s: float
    train_ms: float
    idle_ms: tuple[float, ...]

    def idle(self, cause: IdleCause) -> float:
        """Milliseconds spent on ``cause``."""
        return self.idle_ms[CAUSES.index(cause)]


def merge_spans(first: LaneSpan, second: LaneSpan) -> LaneSpan:
    """Two successive spans as one."""
    return LaneSpan(
        start_s=first.start_s,
        end_s=second.end_s,
        train_ms=first.train_ms + second.train_ms,
        idle_ms=tuple(one + other for one, other in zip(first.idle_ms, second.idle_ms, strict=True)),
    )


class Lane:
    """One rank's time. The owner sees to locking.

    Args:
        rank: Whose it is.
        limit: Most spans held.
    """

    def __init__(self, rank: int, *, limit: int) -> None:
        self._rank = rank
        self._spans: ThinnedSeries[LaneSpan] = ThinnedSeries(limit, time_s=lambda span: span.end_s, merge=merge_spans)
        self._end_s = 0.0
        self._has_trained = False

    def add(self, window: StepWindow) -> None:
        """Enter the rank's next step window."""
        budget = {
            IdleCause.SYNC: window.idle.sync,
            IdleCause.WAIT: window.idle.wait,
            IdleCause.LOAD: window.idle.load,
            IdleCause.NO_DATA: window.idle.no_data,
        }
        hole_s = window.start_s - self._end_s
        if not self._has_trained:
            # waits before the first batch are part of the start; those within its window come first
            self._append(window.start_s, 0.0, {IdleCause.START: 1e3 * hole_s})
        elif hole_s >= MIN_HOLE_S:
            self._append(window.start_s, 0.0, _spend(budget, 1e3 * hole_s))
        self._has_trained = True
        idle_ms = 1e3 * (window.end_s - self._end_s) - window.busy_ms
        self._append(window.end_s, window.busy_ms, _spend(budget, idle_ms))

    def end(self, time_s: float) -> None:
        """The run, or the worker, has ended."""
        cause = IdleCause.END if self._has_trained else IdleCause.START
        self._append(time_s, 0.0, {cause: 1e3 * (time_s - self._end_s)})

    def _append(self, end_s: float, train_ms: float, idle: dict[IdleCause, float]) -> None:
        """Append a span that ends at ``end_s``; what is left of its length is unknown."""
        length_ms = 1e3 * (end_s - self._end_s)
        if length_ms <= 0:
            return
        train_ms = min(train_ms, length_ms)
        idle[IdleCause.UNKNOWN] = max(0.0, length_ms - train_ms - sum(idle.values()))
        self._spans.add(
            LaneSpan(
                start_s=self._end_s,
                end_s=end_s,
                train_ms=train_ms,
                idle_ms=tuple(idle.get(cause, 0.0) for cause in CAUSES),
            )
        )
        self._end_s = end_s

    def spans(self) -> list[LaneSpan]:
        """The lane so far, in order."""
        return list(self._spans)

    def gaps(self, min_ms: float) -> Iterator[IdleGap]:
        """What of the lane is idle for at least ``min_ms``, in order."""
        return gaps_of(self._rank, self.spans(), min_ms)


def gaps_of(rank: int, spans: Sequence[LaneSpan], min_ms: float) -> Iterator[IdleGap]:
    """The idle parts of at least ``min_ms`` of a rank's spans, in order."""
    for span in spans:
        for cause, idle_ms in zip(CAUSES, span.idle_ms, strict=True):
            if idle_ms > 0 and idle_ms >= min_ms:
                yield IdleGap(rank=rank, start_s=span.start_s, end_s=span.end_s, cause=cause, idle_ms=idle_ms)


def _spend(budget: dict[IdleCause, float], length_ms: float) -> dict[IdleCause, float]:
    """Take from ``budget`` what fits into a time; measured waits may exceed it by the clock's rounding alone."""
    spent = {}
    for cause in _SPENT_FIRST:
        spent[cause] = min(budget[cause], max(0.0, length_ms))
        budget[cause] -= spent[cause]
        length_ms -= spent[cause]
    return spent
