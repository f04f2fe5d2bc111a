"""Drives the real coordinator and the real logic of its workers in virtual time.

What is simulated: how long batches, averages and messages take, and workers that raise. All decisions are the
engine's own code. Two runs of one spec are the same run.
"""

from collections.abc import Callable

from flodl_core.commands import CloseMeetings, Command, ComputeAverage, Emit, EpochReady, Finish, Send, StopMeetings
from flodl_core.coordinator import Coordinator, RunPlan
from flodl_core.epoch_metrics import EpochMetrics
from flodl_core.errors import SimulationError
from flodl_core.local_coordinator import LocalCoordinator
from flodl_core.messages import Averaged, StopRequested, ToCoordinator, ToWorker
from flodl_core.policies import ApplyPolicy
from flodl_core.simulation.clock import Clock, Wires
from flodl_core.simulation.local_worker import VirtualLocalWorker
from flodl_core.simulation.observer import Observer
from flodl_core.simulation.rendezvous import VirtualRendezvous, averaged
from flodl_core.simulation.spec import SimulationSpec
from flodl_core.simulation.sync_worker import VirtualSyncWorker
from flodl_core.simulation.worker import Activity, VirtualWorker
from flodl_core.sync_coordinator import SyncCoordinator

STEPS_BETWEEN_LOOKS = 20_000
"""Things that happen between two calls of ``on_progress``."""


class Simulation:
    """One run.

    Args:
        spec: What to simulate.
        observer: Who is told of everything, or None.
    """

    def __init__(self, spec: SimulationSpec, observer: Observer | None = None) -> None:
        self.spec = spec
        self.observer = observer
        self.clock = Clock()
        self.epochs: list[EpochMetrics] = []
        self.finish: Finish | None = None
        self.num_messages = 0
        self._num_steps = 0
        self._tick_s: float | None = None
        self._wires = Wires(self.clock, latency_ms=spec.latency_ms, seed=spec.seed)
        self.coordinator = self._make_coordinator()
        self.rendezvous = self._make_rendezvous()
        kind = VirtualSyncWorker if self.is_sync else VirtualLocalWorker
        self.workers: list[VirtualWorker] = [kind(self, rank) for rank in range(spec.world_size)]

    @property
    def is_sync(self) -> bool:
        """Whether workers run the loop that averages gradients, or nothing where there is but one."""
        return self.spec.world_size == 1 or self.spec.options.policy is ApplyPolicy.SYNC

    def _make_coordinator(self) -> Coordinator:
        plan = RunPlan(
            devices=tuple(f"simulated:{rank}" for rank in range(self.spec.world_size)),
            epoch_size=self.spec.epoch_size,
            batch_size=self.spec.batch_size,
            num_epochs=self.spec.num_epochs,
            max_steps=self.spec.max_steps,
            max_time_s=self.spec.max_time_s,
        )
        if self.is_sync:
            options = self.spec.options
            return SyncCoordinator(
                plan,
                mediated=not options.meets,
                is_progressive=options.progressive_dispatch,
                ratios=options.partition_ratios,
                start_s=0.0,
            )
        return LocalCoordinator(plan, self.spec.options, start_s=0.0)

    def _make_rendezvous(self) -> VirtualRendezvous:
        num_epochs = self.spec.num_epochs

        def candidates(num_done: int) -> range:
            return range(0) if self.is_sync else range(num_done, min(num_done + 2, num_epochs))

        return VirtualRendezvous(
            self.clock,
            world_size=self.spec.world_size,
            average_ms=self.spec.average_ms,
            candidates=candidates,
            epoch_size=self.spec.epoch_size,
            post=None if self.is_sync else self._post_ahead,
            seed=self.spec.seed,
        )

    # Wires: a rank's messages to the coordinator go by its own number, those to it by the negative one before it

    def post(self, rank: int, message: ToCoordinator) -> None:
        """Send a rank's message to the coordinator."""
        self._wires.deliver(rank, self._receive, message)

    def _post_ahead(self, message: ToCoordinator) -> None:
        # as the real meeting: it is in the coordinator's queue before anybody is released
        self._wires.deliver_ahead(range(self.spec.world_size), self._receive, message)

    def _send(self, command: Send) -> None:
        self._wires.deliver(-1 - command.rank, self._arrive, command.rank, command.message)

    def _arrive(self, rank: int, message: ToWorker) -> None:
        if self.observer is not None:
            self.observer.on_delivered(rank, message, now_s=self.clock.now_s)
        self.workers[rank].arrive(message)

    # The coordinator's loop

    def _receive(self, message: ToCoordinator) -> None:
        if self.finish is not None:
            return
        self.num_messages += 1
        if self.observer is not None:
            self.observer.on_received(message, now_s=self.clock.now_s)
        self._execute(self.coordinator.handle(message, self.clock.now_s))

    def _tick(self) -> None:
        self._tick_s = None
        if self.finish is None:
            self._execute(self.coordinator.tick(self.clock.now_s))

    def _execute(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Send():
                    self._send(command)
                case Emit():
                    if self.observer is not None:
                        self.observer.on_event(command.event)
                case EpochReady():
                    self.epochs.append(command.metrics)
                case ComputeAverage():
                    self.clock.after(self.spec.average_ms / 1e3, self._averaged, command)
                case CloseMeetings():
                    if not self.is_sync:
                        self.rendezvous.close()
                case StopMeetings():
                    self.rendezvous.request_stop()
                case Finish():
                    assert self.finish is None, "a run finishes once"
                    self.finish = command
        self._plan_tick()

    def _plan_tick(self) -> None:
        deadline_s = self.coordinator.next_deadline_s
        if deadline_s is not None and (self._tick_s is None or deadline_s < self._tick_s):
            self._tick_s = deadline_s
            self.clock.at(max(deadline_s, self.clock.now_s), self._tick)

    def _averaged(self, command: ComputeAverage) -> None:
        message: Averaged = averaged(command.round, command.tally, cost_ms=self.spec.average_ms, wait_ms={})
        self._wires.deliver(self.spec.world_size, self._receive, message)

    # Driving

    def run(self, *, max_steps: int | None = None, on_progress: Callable[[int], None] | None = None) -> None:
        """Until the run has finished.

        Args:
            max_steps: Things that may happen before the run is given up, or None for no limit.
            on_progress: Called now and then with the samples that have been trained.

        Raises:
            SimulationError: Nothing is left to happen and the run has not finished, or ``max_steps`` is reached: the
                engine has a fault, which the message describes.
        """
        self._execute(self.coordinator.start())
        if self.spec.cancel_at_s is not None:
            self.clock.at(self.spec.cancel_at_s, self._receive, StopRequested())
        while self.finish is None:
            if not self.clock.advance():
                raise SimulationError(f"the run is stuck at {self.clock.now_s:.3f} s: {self._activities()}")
            self._num_steps += 1
            if self._num_steps == max_steps:
                raise SimulationError(f"the run has not ended after {max_steps} steps: {self._activities()}")
            if on_progress is not None and self._num_steps % STEPS_BETWEEN_LOOKS == 0:
                on_progress(self.coordinator.book.totals().num_samples)
        for worker in self.workers:
            worker.turn_to(Activity.ENDED)

    def _activities(self) -> str:
        return ", ".join(f"rank {worker.rank} {worker.activity}" for worker in self.workers)
