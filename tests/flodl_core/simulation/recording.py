"""What a simulated run did, kept for its checks: every batch, every epoch's beginning, every event and its place."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flodl_core.commands import Finish
from flodl_core.events import Event, SyncEvent, WorkerLost
from flodl_core.messages import (
    FINAL_ROUND,
    Averaged,
    BatchesDone,
    RequestParams,
    Shutdown,
    Snapshot,
    ToCoordinator,
    ToWorker,
)
from flodl_core.simulation import Observer, Simulation, SimulationSpec


@dataclass(frozen=True, slots=True)
class TrainedBatch:
    """One rank's batch: a slice of its epoch's permutation."""

    rank: int
    epoch: int
    offset: int
    size: int
    busy_ms: float
    end_s: float


RISES = 0.7
"""Share of averages at which the drift is larger than at the one before."""


class WatchedSimulation(Simulation):
    """Replicas drift apart, mostly more and more, so that the convergence guard has something to judge.

    What is due is looked at as well: each tick has to leave nothing that was.

    Args:
        spec: The run.
        observer: Who is told.
        drift: About the largest divergence of a rank at an average; 0 leaves all at 0.
    """

    def __init__(self, spec: SimulationSpec, observer: Observer, *, drift: float) -> None:
        self._drift = drift
        self._drifts = random.Random(f"drift of {spec.seed}")
        self._largest = drift / 10
        super().__init__(spec, observer)

    def _receive(self, message: ToCoordinator) -> None:
        if self._drift > 0 and isinstance(message, Averaged) and not self.is_sync:
            message = replace(message, divergence=self._next_divergence(sorted(message.weights)))
        super()._receive(message)

    def _tick(self) -> None:
        super()._tick()
        deadline_s = self.coordinator.next_deadline_s
        if self.finish is None and deadline_s is not None:
            assert deadline_s > self.clock.now_s, "a tick has to deal with all that is due, or it is called for ever"

    def _next_divergence(self, ranks: Sequence[int]) -> dict[int, float]:
        draw = self._drifts.random
        self._largest = 1.3 * self._largest if draw() < RISES else self._drift * draw()
        divergence = {rank: self._largest * draw() for rank in ranks}
        return divergence | {self._drifts.choice(ranks): self._largest}


class Recording(Observer):
    """Runs a spec to its end and remembers.

    Args:
        spec: The run.
        drift: See ``WatchedSimulation``.
    """

    def __init__(self, spec: SimulationSpec, *, drift: float = 0.0) -> None:
        self.spec = spec
        self.batches: list[TrainedBatch] = []
        self.begun: dict[int, list[int]] = defaultdict(list)
        self.events: list[Event] = []
        self.num_batches_at: list[int] = []
        """Batches that had been trained when each event came, by its place in ``events``."""
        self.last_entries: dict[int, int] = {}
        """Samples that each rank brought to the run's result, where it was stopped."""
        self.num_shutdowns: Counter[int] = Counter()
        self.told_to_stop_s: dict[int, float] = {}
        """When each rank learned that it is to hand in its replica and end."""
        self.ahead: dict[int, int] = {}
        """By epoch: the most samples that any rank had trained of the next when the last report of this one came."""
        self.requests: dict[int, list[int]] = defaultdict(list)
        """Rounds for which each rank was asked for a snapshot."""
        self.averages_at_request: dict[int, int] = {}
        """By round: averages that had been taken when the first rank was asked for its snapshot."""
        self._num_syncs = 0
        self._samples: Counter[tuple[int, int]] = Counter()
        self._reported: Counter[int] = Counter()
        self.simulation: Simulation = WatchedSimulation(spec, self, drift=drift)

    def run(self) -> "Recording":
        """Until it ends.

        Raises:
            SimulationError: It did not, within a number of steps that is in proportion to the run.
        """
        self.simulation.run(max_steps=most_steps(self.spec))
        return self

    # What it is told

    def on_batch(self, *, rank: int, epoch: int, offset: int, size: int, busy_ms: float, end_s: float) -> None:
        self.batches.append(TrainedBatch(rank, epoch, offset, size, busy_ms, end_s))
        self._samples[rank, epoch] += size

    def on_epoch_begun(self, *, rank: int, epoch: int) -> None:
        self.begun[rank].append(epoch)

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        self.num_batches_at.append(len(self.batches))
        self._num_syncs += isinstance(event, SyncEvent)

    def on_received(self, message: ToCoordinator, *, now_s: float) -> None:
        match message:
            case BatchesDone():
                self._reported[message.epoch] += message.num_samples
                if self._reported[message.epoch] == self.spec.epoch_size:
                    ranks = range(self.spec.world_size)
                    self.ahead[message.epoch] = max(self._samples[rank, message.epoch + 1] for rank in ranks)
            case Snapshot() if message.entry.round == FINAL_ROUND:
                self.last_entries[message.entry.rank] = message.entry.num_samples

    def on_delivered(self, rank: int, message: ToWorker, *, now_s: float) -> None:
        match message:
            case RequestParams():
                self.requests[rank].append(message.round)
                self.averages_at_request.setdefault(message.round, self._num_syncs)
            case Shutdown():
                self.num_shutdowns[rank] += 1
                if message.hand_in:
                    self.told_to_stop_s[rank] = now_s

    # What came of it

    @property
    def num_batches(self) -> int:
        return len(self.batches)

    @property
    def syncs(self) -> list[SyncEvent]:
        return [event for event in self.events if isinstance(event, SyncEvent)]

    @property
    def lost(self) -> list[int]:
        """Ranks that died, in order of their deaths."""
        return [event.rank for event in self.events if isinstance(event, WorkerLost)]

    @property
    def survivors(self) -> list[int]:
        """Ranks that did not die."""
        return sorted(set(range(self.spec.world_size)) - set(self.lost))

    @property
    def finish(self) -> Finish:
        assert self.simulation.finish is not None, "the run has not finished"
        return self.simulation.finish

    @property
    def status(self) -> str:
        return self.finish.status

    @property
    def has_result(self) -> bool:
        """Whether replicas were handed in and averaged at the end: the run was stopped."""
        return self.finish.payload is not None

    def by_epoch(self) -> dict[int, list[TrainedBatch]]:
        """The batches of each epoch, in order of their offsets."""
        batches: dict[int, list[TrainedBatch]] = defaultdict(list)
        for batch in self.batches:
            batches[batch.epoch].append(batch)
        return {epoch: sorted(each, key=lambda batch: batch.offset) for epoch, each in batches.items()}

    def samples_by_rank(self) -> dict[int, int]:
        """Samples that each rank has trained."""
        samples = dict.fromkeys(range(self.spec.world_size), 0)
        for (rank, _), num_samples in self._samples.items():
            samples[rank] += num_samples
        return samples

    def placed(self) -> Iterator[tuple[Event, int]]:
        """Each event, with the number of batches that had been trained by then."""
        yield from zip(self.events, self.num_batches_at, strict=True)


def most_batches(spec: SimulationSpec) -> int:
    """Batches that a run may at most consist of: in sync each rank may have its own in every round."""
    per_epoch = -(-spec.epoch_size // spec.batch_size)
    return spec.num_epochs * (per_epoch + spec.world_size)


def most_steps(spec: SimulationSpec) -> int:
    """Things that may happen in a run before it counts as one that does not end (Law 6).

    Each batch is a few things of its own and may be the only one of its round, in which each rank gets and sends some
    messages; what is beyond that serves late snapshots, which are looked after every ``snapshot_timeout_s``.
    """
    return 2_000 + most_batches(spec) * (10 + 10 * spec.world_size)
