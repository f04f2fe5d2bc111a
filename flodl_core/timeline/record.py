"""All that a timeline holds at one moment, for reading and export."""

from collections.abc import Mapping
from dataclasses import dataclass

from flodl_core.timeline.events import TimelineEvent
from flodl_core.timeline.lanes import CAUSES, IdleCause, IdleGap, LaneSpan, gaps_of
from flodl_core.timeline.samples import TimelineSample


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLane:
    """One rank's time.

    Attributes:
        label: Its device.
        spans: Without gap or overlap, from the run's start on.
    """

    rank: int
    label: str
    spans: tuple[LaneSpan, ...]

    @property
    def train_ms(self) -> float:
        """Milliseconds spent training."""
        return sum(span.train_ms for span in self.spans)

    @property
    def idle_ms(self) -> dict[IdleCause, float]:
        """Milliseconds idle, by cause."""
        return {cause: sum(span.idle(cause) for span in self.spans) for cause in CAUSES}

    @property
    def length_ms(self) -> float:
        """Milliseconds that the spans cover: training and idle add up to it."""
        return 1e3 * (self.spans[-1].end_s - self.spans[0].start_s) if self.spans else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRecord:
    """See the module.

    Attributes:
        interval_ms: Milliseconds between samples, before any were merged.
        num_samples_merged: Samples that were merged into a neighbour.
        num_averages_merged: Averages that were.
        num_left_out: Other events that are no longer kept, by kind.
    """

    interval_ms: int
    samples: tuple[TimelineSample, ...]
    events: tuple[TimelineEvent, ...]
    lanes: tuple[RankLane, ...]
    num_samples_merged: int
    num_averages_merged: int
    num_left_out: Mapping[str, int]

    @property
    def end_s(self) -> float:
        """When the last thing happened, in seconds since the run started."""
        samples = [sample.time_s for sample in self.samples[-1:]]
        events = [event.time_s for event in self.events[-1:]]
        spans = [lane.spans[-1].end_s for lane in self.lanes if lane.spans]
        return max([*samples, *events, *spans], default=0.0)

    def gaps(self, min_ms: float) -> list[IdleGap]:
        """Idle gaps of at least ``min_ms`` of all ranks, by start."""
        gaps = [gap for lane in self.lanes for gap in gaps_of(lane.rank, lane.spans, min_ms)]
        return sorted(gaps, key=lambda gap: (gap.start_s, gap.rank))
