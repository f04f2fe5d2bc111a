# ruff: noqa: D102 - documented with the split into modules that follows
"""Drives the real coordinator and the real worker logic in virtual time: random speeds, latencies and orders."""

import heapq
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from flodl_core import worker_logic as act
from flodl_core.commands import CloseMeetings, Command, ComputeAverage, Emit, EpochReady, Finish, Send, StopMeetings
from flodl_core.coordinator import Coordinator, RunPlan
from flodl_core.epoch_metrics import EpochMetrics
from flodl_core.errors import WorkerFailure
from flodl_core.events import Event, SyncEvent
from flodl_core.local_coordinator import LocalCoordinator
from flodl_core.local_options import LocalOptions
from flodl_core.messages import (
    FINAL_ROUND,
    Averaged,
    Entry,
    Snapshot,
    StopRequested,
    SyncDone,
    ToCoordinator,
    ToWorker,
    Update,
    WindowDone,
    WorkerExiting,
)
from flodl_core.policies import ApplyPolicy
from flodl_core.sync_coordinator import SyncCoordinator
from flodl_core.sync_logic import SyncBatch, SyncLogic
from flodl_core.tally import tally
from flodl_core.worker_ledger import WorkerLedger

REPORT_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualSpec:
    """One run to drive. Times in milliseconds; speeds are batch times by rank."""

    batch_ms: tuple[float, ...]
    epoch_size: int
    batch_size: int
    num_epochs: int
    policy: ApplyPolicy = ApplyPolicy.CADENCE
    meets: bool = True
    average_ms: float = 3.0
    jitter: float = 0.0
    latency_ms: float = 0.1
    seed: int = 0
    anchor: int = 10
    max_batch_diff: int | None = None
    max_overshoot: int | None = None
    cancel_at_s: float | None = None
    raise_at: tuple[int, int] | None = None  # rank, its batch


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    trained: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    begun: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    epochs: list[EpochMetrics] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    finish: Finish | None = None
    steps: int = 0
    num_batches: int = 0
    messages: int = 0

    @property
    def syncs(self) -> list[SyncEvent]:
        """Averages that took place."""
        return [event for event in self.events if isinstance(event, SyncEvent)]


class VirtualRun:
    """The clock, the wires between the actors, and the rendezvous."""

    def __init__(self, spec: VirtualSpec) -> None:
        self.spec = spec
        self.rng = random.Random(spec.seed)
        self.now_s = 0.0
        self.outcome = Outcome()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._last_delivery: dict[object, float] = {}
        plan = RunPlan(
            devices=tuple(f"cpu{rank}" for rank in range(len(spec.batch_ms))),
            epoch_size=spec.epoch_size,
            batch_size=spec.batch_size,
            num_epochs=spec.num_epochs,
        )
        self.coordinator = self._coordinator(plan)
        self.meeting: dict[int, tuple[Entry, float]] = {}
        self.members = set(range(plan.world_size))
        self.meetings_closed = False
        self.stop_meetings = False
        self.next_epoch = 0
        self.workers = [self._worker(rank) for rank in range(plan.world_size)]

    def _coordinator(self, plan: RunPlan) -> Coordinator:
        spec = self.spec
        if spec.policy is ApplyPolicy.SYNC:
            return SyncCoordinator(plan, mediated=not spec.meets, start_s=0.0)
        options = LocalOptions(
            policy=spec.policy,
            meets=spec.meets,
            anchor=spec.anchor,
            max_batch_diff=spec.max_batch_diff,
            max_overshoot=spec.max_overshoot,
        )
        return LocalCoordinator(plan, options, start_s=0.0)

    def _worker(self, rank: int) -> "VirtualWorker":
        kind = VirtualSyncWorker if self.spec.policy is ApplyPolicy.SYNC else VirtualLocalWorker
        return kind(self, rank)

    # Time and wires

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, do)

    def at(self, time_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time_s, next(self._order), do))

    def _deliver(self, wire: object, do: Callable[[], None]) -> None:
        """First in, first out on each wire, and random between wires."""
        due_s = max(self.now_s + self.rng.random() * self.spec.latency_ms / 1e3, self._last_delivery.get(wire, 0.0))
        self._last_delivery[wire] = due_s
        self.at(due_s, do)

    def post(self, sender: object, message: ToCoordinator) -> None:
        self._deliver(("up", sender), partial(self._receive, message))

    def post_ahead(self, message: ToCoordinator) -> None:
        latest_s = max([self.now_s, *(self._last_delivery.get(("up", rank), 0.0) for rank in range(len(self.workers)))])
        self.at(latest_s, partial(self._receive, message))
        for rank in range(len(self.workers)):
            self._last_delivery["up", rank] = latest_s

    def _receive(self, message: ToCoordinator) -> None:
        self.outcome.messages += 1
        self._do(self.coordinator.handle(message, self.now_s))

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Send():
                    self._deliver(("down", command.rank), partial(self._arrive, command.rank, command.message))
                case Emit():
                    self.outcome.events.append(command.event)
                case EpochReady():
                    self.outcome.epochs.append(command.metrics)
                case ComputeAverage():
                    self.after(self.spec.average_ms / 1e3, partial(self._averaged, command))
                case CloseMeetings():
                    if self.spec.policy is not ApplyPolicy.SYNC:
                        self._close_meetings()
                case StopMeetings():
                    self.stop_meetings = True
                case Finish():
                    assert self.outcome.finish is None, "a run finishes once"
                    self.outcome.finish = command

    def _arrive(self, rank: int, message: ToWorker) -> None:
        self.workers[rank].arrive(message)

    def _averaged(self, command: ComputeAverage) -> None:
        terms = command.tally
        self.post(
            "averager",
            Averaged(
                round=command.round,
                cost_ms=self.spec.average_ms,
                wait_ms={},
                weights=terms.num_samples,
                excluded=terms.excluded,
                discarded_samples=terms.discarded_samples,
                divergence={},
                epochs=terms.epochs,
                global_step=terms.global_step,
                payload=object(),
            ),
        )

    # The rendezvous

    def enter(self, entry: Entry) -> None:
        if self.meetings_closed:
            self.workers[entry.rank].meeting_closed()
            return
        self.meeting[entry.rank] = (entry, self.now_s)
        self._maybe_meet()

    def leave(self, rank: int) -> None:
        self.members.discard(rank)
        self.meeting.pop(rank, None)
        self._maybe_meet()

    def _maybe_meet(self) -> None:
        if self.meeting and self.meeting.keys() == self.members:
            assert len({entry.round for entry, _ in self.meeting.values()}) == 1, "ranks of one meeting share a round"
            meeting, self.meeting = self.meeting, {}
            self.after(self.spec.average_ms / 1e3, partial(self._release, meeting))

    def _release(self, meeting: dict[int, tuple[Entry, float]]) -> None:
        entries = [entry for entry, _ in meeting.values()]
        last = max(meeting, key=lambda rank: meeting[rank][1])
        local = self.spec.policy is not ApplyPolicy.SYNC
        candidates = range(self.next_epoch, min(self.next_epoch + 2, self.spec.num_epochs)) if local else ()
        terms = tally(entries, epochs=tuple(candidates), epoch_size=self.spec.epoch_size)
        assert terms is not None
        self.next_epoch += len(terms.epochs)
        message = Averaged(
            round=entries[0].round,
            cost_ms=self.spec.average_ms,
            wait_ms={},
            weights=terms.num_samples,
            excluded=(),
            discarded_samples=0,
            divergence={},
            epochs=terms.epochs,
            global_step=terms.global_step,
            payload=object(),
        )
        if local:
            # as the real one: it is in the coordinator's queue before anybody is released
            self.workers[last].send_now(message)
        for rank in sorted(meeting, key=lambda _: self.rng.random()):
            self.workers[rank].met(message, stop=self.stop_meetings, leader=min(meeting))

    def _close_meetings(self) -> None:
        self.meetings_closed = True
        meeting, self.meeting = self.meeting, {}
        for rank in meeting:
            self.workers[rank].meeting_closed()

    # Driving

    def run(self, *, max_steps: int = 2_000_000) -> Outcome:
        """Until nothing is left to happen."""
        self._do(self.coordinator.start())
        if self.spec.cancel_at_s is not None:
            self.after(self.spec.cancel_at_s, partial(self.post, "owner", StopRequested()))
        while self._heap and self.outcome.finish is None:
            self.now_s, _, do = heapq.heappop(self._heap)
            do()
            self.outcome.steps += 1
            assert self.outcome.steps < max_steps, "the run does not end"
        assert self.outcome.finish is not None, f"the run is stuck at {self.now_s:.3f} s: {self._stuck()}"
        return self.outcome

    def _stuck(self) -> str:
        return "; ".join(f"rank {worker.rank} {worker.state}" for worker in self.workers)


class VirtualWorker:
    """What both kinds of worker share: an inbox, a ledger, and time that batches take."""

    def __init__(self, run: VirtualRun, rank: int) -> None:
        self.run = run
        self.rank = rank
        self.state = "idle"
        self.ledger = WorkerLedger(rank)
        self.inbox: list[ToWorker] = []
        self._reported_s = 0.0

    def arrive(self, message: ToWorker) -> None:
        self.inbox.append(message)
        if self.state == "idle":
            self.proceed()

    def send(self, message: ToCoordinator) -> None:
        self.run.post(self.rank, message)

    def send_now(self, message: ToCoordinator) -> None:
        """Behind what this worker sent before, ahead of whatever anybody sends from now on."""
        self.run.post_ahead(message)

    def proceed(self) -> None:
        raise NotImplementedError

    def met(self, message: Averaged, *, stop: bool, leader: int) -> None:
        raise NotImplementedError

    def meeting_closed(self) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        if self.ledger.num_unreported:
            self._reported_s = self.run.now_s
            self.send(self.ledger.report(loss_sum=0.0, scalars={}, lr=0.1))

    def train(self, *, round_: int, epoch: int, offset: int, size: int, then: Callable[[float], None]) -> None:
        self.state = "training"
        spec = self.run.spec
        if spec.raise_at == (self.rank, self.ledger.total_batches):
            self.run.after(0.0, self.die)
            return
        factor = 1.0 + spec.jitter * (2 * self.run.rng.random() - 1)
        busy_ms = spec.batch_ms[self.rank] * factor * size / spec.batch_size
        start_s = self.run.now_s
        self.run.after(busy_ms / 1e3, partial(self._trained, round_, epoch, offset, size, start_s, busy_ms, then))

    def _trained(
        self,
        round_: int,
        epoch: int,
        offset: int,
        size: int,
        start_s: float,
        busy_ms: float,
        then: Callable[[float], None],
    ) -> None:
        for position in range(offset, offset + size):
            self.run.outcome.trained[epoch][position] += 1
        self.run.outcome.num_batches += 1
        self.ledger.record(
            round_=round_,
            epoch=epoch,
            num_samples=size,
            is_full=size == self.run.spec.batch_size,
            busy_ms=busy_ms,
            start_s=start_s,
            end_s=self.run.now_s,
        )
        self.state = "idle"
        then(busy_ms)

    def die(self) -> None:
        self.flush()
        self.state = "dead"
        error = RuntimeError("died on purpose")
        self.send(WorkerExiting(rank=self.rank, failure=WorkerFailure(rank=self.rank, error=error, traceback="")))
        self.run.leave(self.rank)

    def exit(self) -> None:
        self.state = "ended"
        self.send(WorkerExiting(rank=self.rank))
        self.run.leave(self.rank)


class VirtualLocalWorker(VirtualWorker):
    """Cadence and async."""

    def __init__(self, run: VirtualRun, rank: int) -> None:
        super().__init__(run, rank)
        self.logic = act.WorkerLogic(batch_size=run.spec.batch_size, meets=run.spec.meets)

    def proceed(self) -> None:
        while self.state == "idle":
            for message in self.inbox:
                self.logic.handle(message)
            self.inbox.clear()
            action = self.logic.next_action()
            if isinstance(action, act.Wait):
                self.flush()
                return
            self._do(action)

    def _do(self, action: act.Action) -> None:
        match action:
            case act.BeginEpoch():
                self.run.outcome.begun[self.rank].append(action.epoch)
            case act.TrainBatch():
                self._train(action)
            case act.EndWindow():
                self.flush()
                self.send(WindowDone(rank=self.rank, round=action.round))
            case act.Meet():
                self.flush()
                self.state = "meeting"
                self.run.enter(self.ledger.entry(round_=action.round))
            case act.TakeSnapshot():
                self.flush()
                self._sent = self.ledger.entry(round_=action.round)
                self.send(Snapshot(entry=self._sent, payload=None))
            case act.TakeUpdate():
                if action.update.payload is None:
                    self.ledger.take_back(self._sent)
                else:
                    self.ledger.averaged(action.update.epochs)
                    self.send(SyncDone(rank=self.rank, round=action.update.round, stall_ms=0.1))
            case act.Exit():
                self.flush()
                if action.hand_in:
                    self.send(Snapshot(entry=self.ledger.entry(round_=FINAL_ROUND), payload=None))
                self.exit()

    def _train(self, action: act.TrainBatch) -> None:
        due = self.run.now_s - self._reported_s >= REPORT_S or action.is_last_of_queue
        if due or self.ledger.must_report_before(round_=self.logic.round, epoch=action.epoch):
            self.flush()

        def then(busy_ms: float) -> None:
            self.logic.batch_done(busy_ms=busy_ms, size=action.size)
            self.proceed()

        self.train(round_=self.logic.round, epoch=action.epoch, offset=action.offset, size=action.size, then=then)

    def met(self, message: Averaged, *, stop: bool, leader: int) -> None:
        self.state = "idle"
        self.ledger.averaged(message.epochs)
        self.logic.met()
        self.send(SyncDone(rank=self.rank, round=message.round, stall_ms=message.cost_ms))
        self.proceed()

    def meeting_closed(self) -> None:
        self.state = "idle"
        self.logic.meeting_closed()
        self.proceed()


class VirtualSyncWorker(VirtualWorker):
    """Sync, with a rendezvous or through the coordinator."""

    def __init__(self, run: VirtualRun, rank: int) -> None:
        super().__init__(run, rank)
        world_size = len(run.spec.batch_ms)
        self.logic = SyncLogic(rank=rank, world_size=world_size, batch_size=run.spec.batch_size)
        self._batch: SyncBatch | None = None

    def arrive(self, message: ToWorker) -> None:
        if isinstance(message, Update):
            self._step(stop=message.stop, leader=message.leader, round_=message.round)
        else:
            super().arrive(message)

    def proceed(self) -> None:
        while self.state == "idle":
            for message in self.inbox:
                self.logic.handle(message)
            self.inbox.clear()
            action = self.logic.next_action()
            match action:
                case act.Wait():
                    self.flush()
                    return
                case act.BeginEpoch():
                    self.run.outcome.begun[self.rank].append(action.epoch)
                case act.Exit():
                    self.flush()
                    if action.hand_in:
                        self.send(Snapshot(entry=self.ledger.entry(round_=FINAL_ROUND), payload=None))
                    self.exit()
                case SyncBatch():
                    self._compute(action)

    def _compute(self, batch: SyncBatch) -> None:
        if self.ledger.must_report_before(round_=batch.round, epoch=batch.epoch):
            self.flush()
        self._batch = batch
        if batch.size == 0:
            self.state = "meeting"
            self._hand_over(0.0)
        else:
            self.train(
                round_=batch.round, epoch=batch.epoch, offset=batch.offset, size=batch.size, then=self._hand_over
            )

    def _hand_over(self, _busy_ms: float) -> None:
        assert self._batch is not None
        self.state = "meeting"
        entry = self.ledger.entry(round_=self._batch.round)
        if len(self.run.spec.batch_ms) == 1:
            self._step(stop=False, leader=0, round_=self._batch.round)
        elif self.run.spec.meets:
            self.run.enter(entry)
        else:
            self.send(Snapshot(entry=entry, payload=None))

    def met(self, message: Averaged, *, stop: bool, leader: int) -> None:
        self._step(stop=stop, leader=leader, round_=message.round)

    def _step(self, *, stop: bool, leader: int, round_: int) -> None:
        assert self._batch is not None
        assert self._batch.round == round_
        batch, self._batch = self._batch, None
        self.state = "idle"
        self.logic.stepped(stop=stop)
        self.ledger.averaged((batch.epoch,) if batch.is_last else ())
        if batch.is_last:
            self.flush()
            if self.rank == leader:
                self.send(self._epoch_done(batch))
        self.proceed()

    def _epoch_done(self, batch: SyncBatch) -> Averaged:
        return Averaged(
            round=batch.round,
            cost_ms=0.0,
            wait_ms={},
            weights={},
            excluded=(),
            discarded_samples=0,
            divergence={},
            epochs=(batch.epoch,),
            global_step=0,
            payload=object(),
        )
