"""What the machine and each rank did during a run, moment by moment: samples, events, idle time by cause, exports.

``timeline`` takes from the run and keeps; ``sampler``, ``probe`` and ``nvml`` read the machine; ``events`` and
``lanes`` make marks and each rank's time of what the engine tells; ``record`` is all of it at one moment, which
``json_file``, ``csv_tables`` and ``page`` write.
"""

from flodl_core.timeline.events import TimelineEvent
from flodl_core.timeline.lanes import IdleCause, IdleGap
from flodl_core.timeline.samples import DeviceSample, TimelineSample
from flodl_core.timeline.subscription import TimelineBatch, TimelineSubscription
from flodl_core.timeline.timeline import Timeline

__all__ = [
    "DeviceSample",
    "IdleCause",
    "IdleGap",
    "Timeline",
    "TimelineBatch",
    "TimelineEvent",
    "TimelineSample",
    "TimelineSubscription",
]
