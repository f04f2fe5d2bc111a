"""The simulated worker of sync, and of a single rank; the real one is ``flodl_core.sync_worker``."""

from typing import TYPE_CHECKING

from flodl_core.messages import Averaged, Snapshot, ToWorker, Update
from flodl_core.simulation.rendezvous import Meeting
from flodl_core.simulation.spec import Moment
from flodl_core.simulation.worker import Activity, VirtualWorker
from flodl_core.sync_logic import SyncBatch, SyncLogic
from flodl_core.worker_logic import BeginEpoch, Exit, Wait

if TYPE_CHECKING:
    from flodl_core.simulation.simulation import Simulation


class VirtualSyncWorker(VirtualWorker):
    """Averages after every batch, at a rendezvous or through the coordinator."""

    def __init__(self, run: "Simulation", rank: int) -> None:
        super().__init__(run, rank)
        self.logic = SyncLogic(
            rank=rank,
            world_size=run.spec.world_size,
            batch_size=run.spec.batch_size,
            epoch_size=run.spec.epoch_size,
            ratios=run.spec.options.partition_ratios,
        )
        self._batch: SyncBatch | None = None
        self._start_s = 0.0
        self._busy_ms = 0.0
        self._entered_s = 0.0
        self._num_syncs = 0
        self._sync_ms = 0.0
        self._is_leader = False

    def arrive(self, message: ToWorker) -> None:
        """See ``VirtualWorker``; an average is waited for, and taken at once."""
        if not isinstance(message, Update):
            super().arrive(message)
        elif self.activity is not Activity.ENDED:
            if message.payload is None or self.is_end(Moment.UPDATE):
                self.die()  # without gradients to step with, the real worker raises
            else:
                cost_ms = 1e3 * (self.run.clock.now_s - self._entered_s)
                self._step(stop=message.stop, leader=message.leader, cost_ms=cost_ms)

    def proceed(self) -> None:
        """See ``VirtualWorker``."""
        while self.is_free:
            for message in self.inbox:
                self.logic.handle(message)
            self.inbox.clear()
            action = self.logic.next_action()
            match action:
                case Wait():
                    self.rest(has_data=False)
                    return
                case BeginEpoch():
                    self.begin_epoch(action.epoch)
                case Exit():
                    self.exit(hand_in=action.hand_in)
                case SyncBatch():
                    self._compute(action)

    def report(self) -> None:
        """See ``VirtualWorker``; with what the averages cost in which the rank led."""
        message = self.ledger.report(loss_sum=0.0, scalars={}, lr=0.1, num_syncs=self._num_syncs, sync_ms=self._sync_ms)
        self._num_syncs, self._sync_ms = 0, 0.0
        self.send(message)

    def _compute(self, batch: SyncBatch) -> None:
        self.flush_before(round_=0, epoch=batch.epoch, is_urgent=False)
        self._batch = batch
        if batch.size == 0:
            self._average(self.run.clock.now_s, 0.0)
        else:
            self.train(epoch=batch.epoch, size=batch.size, then=self._average)

    def _average(self, start_s: float, busy_ms: float) -> None:
        batch = self._batch
        assert batch is not None
        self._start_s, self._busy_ms, self._entered_s = start_s, busy_ms, self.run.clock.now_s
        if self.run.spec.world_size == 1:
            self._step(stop=False, leader=0, cost_ms=0.0)
            return
        entry = self.ledger.gradient_entry(round_=batch.round, num_samples=batch.size, is_finite=True)
        if self.run.spec.options.meets:
            self.enter(entry)
        elif self.is_end(Moment.SNAPSHOT):
            self.die()
        else:
            self.turn_to(Activity.AVERAGE)  # the wait for the others is in it: a worker cannot tell the two apart
            self.send(Snapshot(entry=entry, payload=None))

    def met(self, meeting: Meeting) -> None:
        """See ``VirtualWorker``."""
        if self.activity is Activity.ENDED:
            return
        assert self._batch is not None
        assert self._batch.round == meeting.round
        self.leave_meeting(meeting.cost_ms)
        self._step(stop=meeting.stop, leader=meeting.leader, cost_ms=meeting.cost_ms)

    def meeting_closed(self) -> None:
        """See ``VirtualWorker``; meetings for gradients are stopped by their result."""
        raise AssertionError("meetings for gradients are never closed")

    def _step(self, *, stop: bool, leader: int, cost_ms: float) -> None:
        batch = self._batch
        assert batch is not None
        self._batch = None
        self.is_free = True
        if batch.size > 0:
            self._record(batch)
        self._is_leader = leader == self.rank
        if self._is_leader and self.run.spec.world_size > 1:
            self._num_syncs += 1
            self._sync_ms += cost_ms
        self.logic.stepped(stop=stop)
        if batch.is_last:
            self._end_epoch(batch.epoch)
        self.proceed()

    def _record(self, batch: SyncBatch) -> None:
        self.record(
            round_=0,
            epoch=batch.epoch,
            offset=batch.offset,
            size=batch.size,
            start_s=self._start_s,
            busy_ms=self._busy_ms,
        )

    def _end_epoch(self, epoch: int) -> None:
        self.flush()
        self.ledger.averaged((epoch,))
        if self._is_leader:
            self.send(
                Averaged(
                    round=0,
                    cost_ms=0.0,
                    wait_ms={},
                    weights={},
                    excluded=(),
                    discarded_samples=0,
                    divergence={},
                    epochs=(epoch,),
                    global_step=0,
                    payload=object(),
                )
            )
