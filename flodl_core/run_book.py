"""The books of a run: what was trained, by whom, in which time. Fed with reports, asked for metrics and progress."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flodl_core.efficiency import capacity_efficiency
from flodl_core.epoch_metrics import EpochMetrics, EpochTotals
from flodl_core.events import Event, StepWindow
from flodl_core.idle_time import NOT_IDLE, IdleMs
from flodl_core.messages import BatchesDone

STEP_WINDOW_S = 0.2
"""Shortest stretch between two step windows of a rank: at most five rows a second."""


@dataclass(slots=True)
class _RankBook:
    num_batches: int = 0
    num_samples: int = 0
    busy_ms: float = 0.0
    loss_sum: float = 0.0

    def add(self, report: BatchesDone) -> None:
        self.num_batches += report.num_batches
        self.num_samples += report.num_samples
        self.busy_ms += report.busy_ms
        self.loss_sum += report.loss_sum


@dataclass(slots=True)
class _OpenWindow:
    epoch: int
    since_s: float
    lr: float
    book: _RankBook
    start_s: float
    end_s: float
    idle: IdleMs = NOT_IDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """What a run has done so far.

    Attributes:
        num_samples: Samples trained, each as often as it was.
        num_batches: Optimizer steps of all ranks: the global step.
        discarded_samples: Of ``num_samples``, those in windows that were left out for not being finite.
        wall_s: From the first batch's start to the last one's end.
        capacity_efficiency: Share of the devices' own speed that was put to use; see ``efficiency``.
        rank_samples: By rank.
        rank_batches: By rank.
        rank_busy_ms: By rank.
    """

    num_samples: int
    num_batches: int
    discarded_samples: int
    wall_s: float
    capacity_efficiency: float
    rank_samples: tuple[int, ...]
    rank_batches: tuple[int, ...]
    rank_busy_ms: tuple[float, ...]


class RunBook:
    """Owned by the coordinator.

    Args:
        devices: Label of each rank's device.
        start_s: When the run began; the origin of the times in events.
        epoch_size: Samples in an epoch, or None where an epoch's time goes on until ``end_epoch``.
    """

    def __init__(self, devices: Sequence[str], *, start_s: float, epoch_size: int | None = None) -> None:
        self._devices = tuple(devices)
        self._start_s = start_s
        self._ranks = [_RankBook() for _ in devices]
        self._windows: dict[int, _OpenWindow] = {}
        self._latest: dict[int, _RankBook] = {}
        self._epoch_size = epoch_size
        self._epochs: dict[int, EpochTotals] = {}
        self._next_whole = 0
        self._stretches: dict[int, tuple[float, float]] = {}
        self._efficiency = 0.0
        self._first_s: float | None = None
        self._last_s = 0.0
        self._lr = 0.0
        self._num_batches = 0
        self.discarded_samples = 0
        self._closed_s: float | None = None
        self._closed_samples = [0] * len(self._ranks)
        self._closed_busy_ms = [0.0] * len(self._ranks)

    @property
    def global_step(self) -> int:
        """Batches reported by all ranks."""
        return self._num_batches

    def batches_of(self, ranks: Iterable[int]) -> int:
        """Batches reported by these ranks."""
        return sum(self._ranks[rank].num_batches for rank in ranks)

    def time_s(self, now_s: float) -> float:
        """``now_s`` as an event's time: seconds since the run began."""
        return now_s - self._start_s

    def add(self, report: BatchesDone, now_s: float) -> Iterable[Event]:
        """Enter a report; returns the step windows that it completes."""
        self._ranks[report.rank].add(report)
        self._num_batches += report.num_batches
        self.discarded_samples += report.discarded_samples
        self._first_s = report.start_s if self._first_s is None else min(self._first_s, report.start_s)
        self._last_s = max(self._last_s, report.end_s)
        self._lr = report.lr
        self._epoch(report.epoch).add(
            report.rank,
            num_batches=report.num_batches,
            num_samples=report.num_samples,
            busy_ms=report.busy_ms,
            loss_sum=report.loss_sum,
            scalars=report.scalars,
        )
        self._note_whole_epochs()
        return self._add_to_window(report, now_s)

    def _note_whole_epochs(self) -> None:
        """Close the time of epochs with their last sample: in an average they are later, when the next has begun."""
        first = self._next_whole
        while (totals := self._epochs.get(self._next_whole)) and totals.num_samples == self._epoch_size:
            self._next_whole += 1
        if self._next_whole > first:
            self._close_stretch(range(first, self._next_whole))

    def _close_stretch(self, epochs: Sequence[int]) -> None:
        """Settle milliseconds and efficiency of epochs that end now; of several each has its part of the time."""
        since_s = self._closed_s if self._closed_s is not None else (self._first_s or 0.0)
        stretch_ms = max(0.0, 1e3 * (self._last_s - since_s))
        if (
            stretch_ms > 0
        ):  # else it was trained beside an epoch that ended no earlier, and its efficiency is that one's
            samples = [book.num_samples - old for book, old in zip(self._ranks, self._closed_samples, strict=True)]
            busy_ms = [book.busy_ms - old for book, old in zip(self._ranks, self._closed_busy_ms, strict=True)]
            # batches are counted where they end: on a tiny epoch the edges may make it look better than perfect
            self._efficiency = min(1.0, capacity_efficiency(samples, busy_ms, stretch_ms))
            self._closed_s = self._last_s
            self._closed_samples = [book.num_samples for book in self._ranks]
            self._closed_busy_ms = [book.busy_ms for book in self._ranks]
        self._stretches.update(dict.fromkeys(epochs, (stretch_ms / len(epochs), self._efficiency)))

    def _epoch(self, epoch: int) -> EpochTotals:
        totals = self._epochs.get(epoch)
        if totals is None:  # not setdefault: it would make a book of all ranks for every report
            totals = self._epochs[epoch] = EpochTotals(len(self._ranks))
        return totals

    def _add_to_window(self, report: BatchesDone, now_s: float) -> list[Event]:
        windows: list[Event] = []
        window = self._windows.get(report.rank)
        if window is not None and window.epoch != report.epoch:
            windows.append(self._close_window(report.rank, now_s))
            window = None
        if window is None:
            window = self._windows[report.rank] = _OpenWindow(
                report.epoch, now_s, report.lr, _RankBook(), report.start_s, report.end_s
            )
        window.book.add(report)
        window.lr, window.end_s = report.lr, report.end_s
        window.idle += report.idle
        if now_s - window.since_s >= STEP_WINDOW_S:
            windows.append(self._close_window(report.rank, now_s))
        return windows

    def _close_window(self, rank: int, now_s: float) -> StepWindow:
        window = self._windows.pop(rank)
        book = self._latest[rank] = window.book
        return StepWindow(
            time_s=self.time_s(now_s),
            rank=rank,
            epoch=window.epoch,
            global_step=self._num_batches,
            loss=book.loss_sum / book.num_samples,
            lr=window.lr,
            samples_per_s=1e3 * book.num_samples / book.busy_ms if book.busy_ms > 0 else 0.0,
            num_batches=book.num_batches,
            num_samples=book.num_samples,
            busy_ms=book.busy_ms,
            start_s=self.time_s(window.start_s),
            end_s=self.time_s(window.end_s),
            idle=window.idle,
        )

    def close_windows(self, now_s: float) -> list[Event]:
        """Complete every rank's step window, at the end of an epoch or of the run."""
        return [self._close_window(rank, now_s) for rank in sorted(self._windows)]

    def end_epoch(self, epoch: int) -> EpochMetrics:
        """Give the metrics of an epoch that is in an average.

        Its time and efficiency run from the previous epoch's last sample to its own.
        """
        if epoch not in self._stretches:
            self._close_stretch([epoch])
        epoch_ms, efficiency = self._stretches.pop(epoch)
        totals = self._epochs.pop(epoch, None) or EpochTotals(len(self._ranks))
        return totals.metrics(
            epoch=epoch,
            epoch_ms=epoch_ms,
            lr=self._lr,
            devices=self._devices,
            capacity_efficiency=efficiency,
            eval={},
        )

    def totals(self) -> RunTotals:
        """What the run has done so far."""
        samples = tuple(book.num_samples for book in self._ranks)
        busy_ms = tuple(book.busy_ms for book in self._ranks)
        wall_s = self._last_s - self._first_s if self._first_s is not None else 0.0
        return RunTotals(
            num_samples=sum(samples),
            num_batches=self._num_batches,
            discarded_samples=self.discarded_samples,
            wall_s=wall_s,
            capacity_efficiency=capacity_efficiency(samples, busy_ms, 1e3 * wall_s),
            rank_samples=samples,
            rank_batches=tuple(book.num_batches for book in self._ranks),
            rank_busy_ms=busy_ms,
        )

    @property
    def recent_loss(self) -> float:
        """Mean loss over the samples of each rank's latest step window; NaN before the first."""
        num_samples = sum(book.num_samples for book in self._latest.values())
        return sum(book.loss_sum for book in self._latest.values()) / num_samples if num_samples else math.nan

    def rank_speeds(self) -> Mapping[int, float]:
        """Samples per second of busy time, by rank, of the ranks that have trained."""
        return {
            rank: 1e3 * book.num_samples / book.busy_ms for rank, book in enumerate(self._ranks) if book.busy_ms > 0
        }
