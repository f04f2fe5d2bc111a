"""What a simulated run did, kept for its checks: every sample, every epoch's beginning, every event."""

from collections import Counter, defaultdict

from flodl_core.events import Event, SyncEvent
from flodl_core.simulation import Observer, Simulation, SimulationSpec

MAX_STEPS = 2_000_000


class Recording(Observer):
    """Runs a spec to its end and remembers."""

    def __init__(self, spec: SimulationSpec) -> None:
        self.spec = spec
        self.trained: dict[int, Counter[int]] = defaultdict(Counter)
        self.begun: dict[int, list[int]] = defaultdict(list)
        self.events: list[Event] = []
        self.num_batches = 0
        self.simulation = Simulation(spec, self)

    def run(self) -> "Recording":
        self.simulation.run(max_steps=MAX_STEPS)
        return self

    def on_batch(self, *, rank: int, epoch: int, offset: int, size: int, busy_ms: float, end_s: float) -> None:
        self.trained[epoch].update(range(offset, offset + size))
        self.num_batches += 1

    def on_epoch_begun(self, *, rank: int, epoch: int) -> None:
        self.begun[rank].append(epoch)

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    @property
    def syncs(self) -> list[SyncEvent]:
        return [event for event in self.events if isinstance(event, SyncEvent)]

    @property
    def status(self) -> str:
        assert self.simulation.finish is not None
        return self.simulation.finish.status

    @property
    def has_result(self) -> bool:
        assert self.simulation.finish is not None
        return self.simulation.finish.payload is not None
