"""``Timeline``: what the machine and each rank did, moment by moment."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from flodl_core.arguments import whole_number
from flodl_core.errors import FlodlError, error_text
from flodl_core.events import Event, RunEnded, StepWindow, WorkerLost
from flodl_core.thinned_series import ThinnedSeries
from flodl_core.timeline.csv_tables import write_csv
from flodl_core.timeline.events import EventBook, EventTranslator, FieldValue, TimelineEvent, user_mark
from flodl_core.timeline.json_file import write_json
from flodl_core.timeline.lanes import IdleGap, Lane
from flodl_core.timeline.page import write_page
from flodl_core.timeline.probe import MachineProbe, Probe
from flodl_core.timeline.record import RankLane, TimelineRecord
from flodl_core.timeline.sampler import Pulse, Sampler, SteadyPulse
from flodl_core.timeline.samples import TimelineSample, merge_samples
from flodl_core.timeline.subscription import TimelineSubscription

MAX_SAMPLES = 36_000
"""Samples held, an hour of ten a second; above that, neighbours are merged over the whole run."""
MAX_SPANS = 40_000
"""Spans held of all ranks together; above that, neighbours are merged."""
MIN_SPANS = 200
"""Spans that a rank may have, however many ranks there are."""
SUBSCRIBER_LIMIT = 10_000


class Timeline:
    """Watches one run: give it to ``DdpBuilder.timeline``. Its methods may be called from any thread, at any time.

    A thread samples the machine every ``interval_ms``; events and idle gaps come from the run itself. What it holds is
    bounded: in long runs neighbouring samples, spans of a rank's time and averages are merged, and of other events the
    latest of each kind are kept; ``record()`` says how many were merged and left out.

    Args:
        interval_ms: Milliseconds between samples, from 10 to 60,000.
        clock: Seconds, never going back: the one that the run's events are timed by.
        pulse: When to sample; for tests.
        probe: What to read the machine with; for tests.

    Raises:
        ConfigError: ``interval_ms`` is out of its range.
    """

    def __init__(
        self,
        interval_ms: int = 100,
        *,
        clock: Callable[[], float] = time.perf_counter,
        pulse: Pulse | None = None,
        probe: Probe | None = None,
    ) -> None:
        self.interval_ms = whole_number("interval_ms", interval_ms, least=10, most=60_000)
        self._clock = clock
        self._pulse = pulse
        self._probe = probe
        self._lock = threading.Lock()
        self._start_s: float | None = None
        self._sampler: Sampler | None = None
        self._is_stopped = False
        self._labels: tuple[str, ...] = ()
        self._lanes: list[Lane] = []
        self._lost_s: dict[int, float] = {}
        self._samples: ThinnedSeries[TimelineSample] = ThinnedSeries(
            MAX_SAMPLES, time_s=lambda sample: sample.time_s, merge=merge_samples
        )
        self._book = EventBook()
        self._translator = EventTranslator()
        self._subscriptions: list[TimelineSubscription] = []

    # What the run calls

    def start(self, labels: Sequence[str], devices: Sequence[torch.device], *, start_s: float) -> None:
        """Begin to sample.

        Args:
            labels: The ranks' devices as a person reads them, shape (world_size,).
            devices: The ranks' devices, shape (world_size,).
            start_s: When the run began, on this timeline's clock: the origin of all its times.

        Raises:
            FlodlError: It has been given to a run before.
        """
        with self._lock:
            if self._start_s is not None:
                raise FlodlError("this timeline has seen a run already: make a new Timeline for each run")
            self._start_s = start_s
            self._labels = tuple(labels)
            limit = max(MIN_SPANS, MAX_SPANS // max(1, len(labels)))
            self._lanes = [Lane(rank, limit=limit) for rank in range(len(labels))]
        probe = self._probe or MachineProbe(devices)
        pulse = self._pulse or SteadyPulse(self.interval_ms / 1e3, clock=self._clock)
        self._sampler = Sampler(lambda: self._sample(probe), pulse=pulse, close=probe.close)
        self._sampler.start()

    def on_event(self, event: Event) -> None:
        """Take an event of the run, in order."""
        with self._lock:
            match event:
                case StepWindow():
                    self._lanes[event.rank].add(event)
                case WorkerLost():
                    self._lost_s[event.rank] = event.time_s
                case RunEnded():  # a lost worker's last batches may be reported after its loss: lanes end here
                    for rank, lane in enumerate(self._lanes):
                        lane.end(self._lost_s.get(rank, event.time_s))
            for told in self._translator.translate(event):
                self._add(told)

    @contextlib.contextmanager
    def work(self, kind: str, **fields: FieldValue) -> Iterator[None]:
        """Note what is done beside the training, how long it takes, and with which error it failed, if it did."""
        start_s = self._clock()
        try:
            yield
        except Exception as error:
            self._note_work(kind, start_s, {**fields, "error": error_text(error)})
            raise
        self._note_work(kind, start_s, fields)

    def _note_work(self, kind: str, start_s: float, fields: Mapping[str, FieldValue]) -> None:
        end_s = self._clock()
        told = TimelineEvent(kind=kind, time_s=self._time_s(end_s), duration_ms=1e3 * (end_s - start_s), fields=fields)
        with self._lock:
            self._add(told)

    def stop(self) -> None:
        """The run is over: take a last sample and end the thread. May be called twice."""
        if self._sampler is not None:
            self._sampler.stop()  # before the readers' end: the last sample is theirs too
        with self._lock:
            self._is_stopped = True
            subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close()

    # What the user calls

    def mark(self, name: str, /, **fields: FieldValue) -> None:
        """Note that something happened now.

        Args:
            name: What.
            fields: More about it: text, numbers, booleans or None.

        Raises:
            ConfigError: The name or a field is of another type.
            FlodlError: The run has not begun.
        """
        told = user_mark(name, self._time_s(self._clock()), fields)
        with self._lock:
            self._add(told)

    def subscribe(self, limit: int = SUBSCRIBER_LIMIT) -> TimelineSubscription:
        """Read along from now on; each reader gets everything.

        Args:
            limit: Most samples and events kept for the reader while it does not read, at least 1.

        Returns:
            What to iterate over, or to ask for ``next``; it ends with the run.

        Raises:
            ConfigError: ``limit`` is below 1.
        """
        subscription = TimelineSubscription(whole_number("limit", limit, least=1))
        with self._lock:
            if self._is_stopped:
                subscription.close()
            else:
                self._subscriptions.append(subscription)
        return subscription

    @property
    def samples(self) -> list[TimelineSample]:
        """Samples so far, in order."""
        with self._lock:
            return list(self._samples)

    @property
    def events(self) -> list[TimelineEvent]:
        """Events so far, by time."""
        with self._lock:
            return self._book.all()

    def idle_gaps(self, min_ms: float = 1.0) -> list[IdleGap]:
        """Time in which ranks did not train, with its cause, by start.

        Args:
            min_ms: Shortest gap told, in milliseconds.
        """
        return self.record().gaps(min_ms)

    def record(self) -> TimelineRecord:
        """Everything so far: what the exports are made of."""
        with self._lock:
            return TimelineRecord(
                interval_ms=self.interval_ms,
                samples=tuple(self._samples),
                events=tuple(self._book.all()),
                lanes=tuple(
                    RankLane(rank=rank, label=label, spans=tuple(lane.spans()))
                    for rank, (label, lane) in enumerate(zip(self._labels, self._lanes, strict=True))
                ),
                num_samples_merged=self._samples.num_added - len(self._samples),
                num_averages_merged=self._book.num_merged,
                num_left_out=dict(self._book.num_left_out),
            )

    def save_json(self, path: str | Path) -> None:
        """Write everything as one JSON object; numbers that are not finite become ``"NaN"`` and ``"Infinity"``."""
        write_json(self.record(), Path(path))

    def save_csv(self, path: str | Path) -> tuple[Path, Path, Path]:
        """Write samples to ``path``, and beside it events (``-events``) and idle gaps (``-idle``).

        Returns:
            The three files.
        """
        return write_csv(self.record(), Path(path))

    def save_html(self, path: str | Path) -> None:
        """Write one page that needs nothing else: each rank's time by cause, the machine's curves, the events."""
        write_page(self.record(), Path(path))

    # Inside

    def _sample(self, probe: Probe) -> None:
        sample = probe.read(self._time_s(self._clock()))
        with self._lock:
            self._samples.add(sample)
            self._publish(sample)

    def _add(self, event: TimelineEvent) -> None:
        self._book.add(event)
        self._publish(event)

    def _publish(self, item: TimelineSample | TimelineEvent) -> None:
        self._subscriptions = [subscription for subscription in self._subscriptions if not subscription.is_closed]
        for subscription in self._subscriptions:
            subscription.put(item)

    def _time_s(self, now_s: float) -> float:
        if self._start_s is None:
            raise FlodlError("the timeline's run has not begun: times count from there")
        return now_s - self._start_s
