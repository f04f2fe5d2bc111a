"""flodl's engine: one PyTorch model trained on several devices that need not be alike."""

from flodl_core.builder import Ddp, DdpBuilder
from flodl_core.data import BatchDataSet
from flodl_core.devices import WorkerSpec, parse_worker_spec
from flodl_core.epoch_metrics import EpochMetrics
from flodl_core.errors import (
    AveragingError,
    ChannelClosed,
    ConfigError,
    DatasetError,
    FlodlError,
    ModelError,
    NonFiniteError,
    StateError,
    TrainFnError,
    WorkerError,
    WorkerFailure,
    WorkerFailureWarning,
    WorkerTimeoutError,
)
from flodl_core.events import (
    AnchorChanged,
    EpochEnded,
    Event,
    GuardChanged,
    RunEnded,
    RunStarted,
    SnapshotLate,
    StepWindow,
    SyncEvent,
    Throttled,
    WorkerLost,
)
from flodl_core.handle import DdpHandle
from flodl_core.monitor import Monitor
from flodl_core.plateau import PlateauScheduler
from flodl_core.policies import ApplyPolicy, AverageBackend, NonFinitePolicy
from flodl_core.run import Progress
from flodl_core.run_book import RunTotals
from flodl_core.scalars import record_scalar
from flodl_core.schedules import (
    CosineScheduler,
    CyclicLR,
    ExponentialLR,
    MultiStepLR,
    OneCycleLR,
    StepDecay,
    WarmupScheduler,
)
from flodl_core.timeline import (
    DeviceSample,
    IdleCause,
    IdleGap,
    Timeline,
    TimelineBatch,
    TimelineEvent,
    TimelineSample,
    TimelineSubscription,
)
from flodl_core.trained_state import TrainedState
from flodl_core.trainer import WorkerContext

__all__ = [
    "AnchorChanged",
    "ApplyPolicy",
    "AverageBackend",
    "AveragingError",
    "BatchDataSet",
    "ChannelClosed",
    "ConfigError",
    "CosineScheduler",
    "CyclicLR",
    "DatasetError",
    "Ddp",
    "DdpBuilder",
    "DdpHandle",
    "DeviceSample",
    "EpochEnded",
    "EpochMetrics",
    "Event",
    "ExponentialLR",
    "FlodlError",
    "GuardChanged",
    "IdleCause",
    "IdleGap",
    "ModelError",
    "Monitor",
    "MultiStepLR",
    "NonFiniteError",
    "NonFinitePolicy",
    "OneCycleLR",
    "PlateauScheduler",
    "Progress",
    "RunEnded",
    "RunStarted",
    "RunTotals",
    "SnapshotLate",
    "StateError",
    "StepDecay",
    "StepWindow",
    "SyncEvent",
    "Throttled",
    "Timeline",
    "TimelineBatch",
    "TimelineEvent",
    "TimelineSample",
    "TimelineSubscription",
    "TrainFnError",
    "TrainedState",
    "WarmupScheduler",
    "WorkerContext",
    "WorkerError",
    "WorkerFailure",
    "WorkerFailureWarning",
    "WorkerLost",
    "WorkerSpec",
    "WorkerTimeoutError",
    "parse_worker_spec",
    "record_scalar",
]
