"""The worker of the policies cadence and async: does what ``WorkerLogic`` says, with tensors."""

import time

from flodl_core import worker_logic as act
from flodl_core.meetings import Contribution
from flodl_core.messages import Entry, Snapshot, SyncDone, Update, WindowDone
from flodl_core.replica import ReplicaState
from flodl_core.worker import Worker, WorkerSeat


class LocalWorker(Worker):
    """Local SGD on one device."""

    def __init__(self, seat: WorkerSeat) -> None:
        super().__init__(seat)
        self._logic = act.WorkerLogic(batch_size=self.job.batch_size, meets=self.job.meets)
        self._global_step = 0
        self._batches_at_update = 0
        self._last_position = self.job.num_epochs * -(-self.job.epoch_size // self.job.batch_size) - 1
        self._batch: act.TrainBatch | None = None
        self._snapshot: ReplicaState | None = None
        self._entries: dict[int, Entry] = {}  # by round, until answered: a late one may be answered after the next
        self._stall_ms = 0.0

    def run(self) -> None:
        """See ``Worker``."""
        while True:
            self.seat.pulse.beat()
            for message in self.seat.inbox.drain():
                self._logic.handle(message)
            action = self._logic.next_action()
            match action:
                case act.TrainBatch():
                    self._train(action)
                case act.Wait():
                    self._wait()
                case act.Exit():
                    self.flush()
                    if action.hand_in:
                        self.hand_in()
                    return
                case _:
                    self._take_part(action)

    def _wait(self) -> None:
        self.flush()
        start_s = time.perf_counter()
        message = self.receive()
        self.trainer.idle.waited(1e3 * (time.perf_counter() - start_s), has_data=self._logic.has_data)
        if message is not None:
            self._logic.handle(message)

    def _take_part(self, action: act.Action) -> None:
        match action:
            case act.BeginEpoch():
                self.flush()  # with the learning rate of what was trained: epoch_fn may set another
                self.trainer.begin_epoch(action.epoch)
            case act.EndWindow():
                self.flush()
                self.send(WindowDone(rank=self.seat.rank, round=action.round))
            case act.Meet():
                self._meet(action.round)
            case act.TakeSnapshot():
                self._take_snapshot(action.round)
            case act.TakeUpdate():
                self._take_update(action.update)

    # Batches

    def _train(self, action: act.TrainBatch) -> None:
        self._batch = action
        round_ = self._logic.round
        self.flush_before(round_=round_, epoch=action.epoch, is_urgent=action.is_last_of_queue)

        start_s = self.trainer.compute(
            epoch=action.epoch,
            offset=action.offset,
            size=action.size,
            following=self._logic.slice_left - action.size,
            read_ahead=self._read_ahead,
        )
        self.trainer.step(self._position() if self.trainer.lr.has_schedule else 0)
        end_s, busy_ms = self.trainer.finish(start_s)
        self.record(
            round_=round_,
            epoch=action.epoch,
            size=action.size,
            is_full=action.size == self.job.batch_size,
            busy_ms=busy_ms,
            start_s=start_s,
            end_s=end_s,
        )
        self._logic.batch_done(busy_ms=busy_ms, size=action.size)

    def _read_ahead(self) -> None:
        assert self._batch is not None, "a batch is under way"
        plan = self._logic.plan_after(self._batch)
        if plan is not None:
            self.trainer.read_ahead(epoch=plan.epoch, offset=plan.offset, size=plan.size)

    def _position(self) -> int:
        """Where the schedule stands: the global step as of the last average, and what all ranks probably did since.

        Never past the run's last batch: a schedule may be anything there, such as a negative factor.
        """
        opened = self._logic.opened
        done = self.ledger.total_batches - self._batches_at_update
        if opened is not None:
            done = done * opened.planned_total // opened.planned
        return min(self._global_step + done, self._last_position)

    def _note_average(self, global_step: int) -> None:
        self._global_step = global_step
        self._batches_at_update = self.ledger.total_batches
        self.trainer.num_updates += 1

    # All-reduce

    def _meet(self, round_: int) -> None:
        self.flush()
        start_s = time.perf_counter()
        state = self.trainer.replica.state()
        is_finite = state.is_finite()
        self.check_finite(is_finite)
        entry = self.ledger.entry(round_=round_, is_finite=is_finite)
        gathered_s = time.perf_counter()
        result = self.meet(Contribution(entry=entry, state=state))
        if result is None:
            self.ledger.take_back(entry)
            self._logic.meeting_closed()
            return
        released_s = time.perf_counter()
        self.trainer.replica.take_buffers()
        self.ledger.averaged(result.epochs)
        if self.note_excluded(self.seat.rank in result.excluded):
            self.trainer.forget_optimizer()
        self._note_average(result.global_step)
        stall_ms = result.cost_ms + 1e3 * (gathered_s - start_s + time.perf_counter() - released_s)
        self.trainer.idle.sync_ms += stall_ms
        waited_ms = max(0.0, 1e3 * (released_s - gathered_s) - result.cost_ms)
        self.trainer.idle.waited(waited_ms, has_data=entry.num_samples > 0)
        self._logic.met()
        self.send(SyncDone(rank=self.seat.rank, round=round_, stall_ms=stall_ms))

    # Through the CPU

    def _take_snapshot(self, round_: int) -> None:
        self.flush()
        start_s = time.perf_counter()
        state = self.trainer.replica.state()
        if self._snapshot is None:
            self._snapshot = state.clone()
        else:
            self._snapshot.copy_from(state)
        is_finite = self._snapshot.is_finite()
        self.check_finite(is_finite)
        entry = self._entries[round_] = self.ledger.entry(round_=round_, is_finite=is_finite)
        self._stall_ms = 1e3 * (time.perf_counter() - start_s)
        self.trainer.idle.sync_ms += self._stall_ms
        self.send(Snapshot(entry=entry, payload=self._snapshot))

    def _take_update(self, update: Update) -> None:
        assert self._snapshot is not None, "an update answers a snapshot"
        entry = self._entries.pop(update.round)
        if update.payload is None:
            self.ledger.take_back(entry)
            return
        assert isinstance(update.payload, ReplicaState)
        start_s = time.perf_counter()
        discarded = 0
        if update.is_excluded:
            self.trainer.replica.load(update.payload)
            discarded = self.ledger.discard()
        else:
            has_trained = self.ledger.batches_since_entry > 0
            self.trainer.replica.merge(update.payload, self._snapshot, has_trained=has_trained)
        self.ledger.averaged(update.epochs)
        if self.note_excluded(update.is_excluded):
            self.trainer.forget_optimizer()
        self._note_average(update.global_step)
        merge_ms = 1e3 * (time.perf_counter() - start_s)
        self.trainer.idle.sync_ms += merge_ms
        stall_ms = self._stall_ms + merge_ms
        self.send(SyncDone(rank=self.seat.rank, round=update.round, stall_ms=stall_ms, discarded_samples=discarded))
