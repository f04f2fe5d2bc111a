"""The worker of the policy sync, and of a single device: does what ``SyncLogic`` says, with tensors."""

import time
from dataclasses import dataclass

from flodl_core.errors import AveragingError, NonFiniteError
from flodl_core.meetings import Contribution
from flodl_core.messages import Averaged, Scalars, Snapshot, Update
from flodl_core.replica import ReplicaState
from flodl_core.sync_logic import SyncBatch, SyncLogic
from flodl_core.worker import Worker, WorkerSeat
from flodl_core.worker_logic import BeginEpoch, Exit, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """What came of a round's average.

    Attributes:
        stop: End after the step.
        leader: The rank that speaks for all.
        cost_ms: What averaging took.
        is_excluded: This rank's gradients were left out.
    """

    stop: bool
    leader: int
    cost_ms: float
    is_excluded: bool


ALONE = _Verdict(stop=False, leader=0, cost_ms=0.0, is_excluded=False)


class SyncWorker(Worker):
    """Averages gradients with the other ranks before every step."""

    def __init__(self, seat: WorkerSeat) -> None:
        super().__init__(seat)
        world_size = self.job.world_size
        self._logic = SyncLogic(
            rank=seat.rank,
            world_size=world_size,
            batch_size=self.job.batch_size,
            epoch_size=self.job.epoch_size,
            ratios=self.job.options.partition_ratios,
        )
        self._global_step = 0
        self._num_syncs = 0
        self._sync_ms = 0.0
        self._discarded = 0
        self._is_leader = False

    def run(self) -> None:
        """See ``Worker``."""
        while True:
            self.seat.pulse.beat()
            for message in self.seat.inbox.drain():
                self._logic.handle(message)
            action = self._logic.next_action()
            match action:
                case SyncBatch():
                    self._round(action)
                case BeginEpoch():
                    self.trainer.begin_epoch(action.epoch)
                case Wait():
                    self._wait()
                case Exit():
                    self.flush()
                    if action.hand_in:
                        self.hand_in()
                    return

    def _wait(self) -> None:
        self.flush()
        start_s = time.perf_counter()
        message = self.receive()
        self.trainer.idle.waited(1e3 * (time.perf_counter() - start_s), has_data=False)
        if message is not None:
            self._logic.handle(message)

    def _send_report(self, loss_sum: float, scalars: Scalars) -> None:
        self.send(
            self.ledger.report(
                loss_sum=loss_sum,
                scalars=scalars,
                lr=self.trainer.lr.current,
                num_syncs=self._num_syncs,
                sync_ms=self._sync_ms,
                discarded_samples=self._discarded,
                idle=self.trainer.idle.take(),
            )
        )
        self._num_syncs, self._sync_ms, self._discarded = 0, 0.0, 0
        if self.job.is_single and loss_sum - loss_sum != 0.0:  # NaN or infinite: nobody else would notice
            self._check_alone()

    def _check_alone(self) -> None:
        if not self.trainer.replica.state().is_finite():
            raise NonFiniteError("the training has diverged: the parameters are not finite")

    def _round(self, batch: SyncBatch) -> None:
        # batches of different rounds may share a report: only the epoch has to be the same
        self.flush_before(round_=0, epoch=batch.epoch, is_urgent=False)
        start_s = time.perf_counter()
        if batch.size > 0:
            start_s = self.trainer.compute(
                epoch=batch.epoch,
                offset=batch.offset,
                size=batch.size,
                following=max(0, self._logic.slice_left - batch.size),
                read_ahead=self._read_ahead,
            )
        if self.job.is_single:
            verdict, compute_ms, step_start_s = ALONE, 0.0, start_s
        else:  # the average between gradients and step is not the device's work
            _, compute_ms = self.trainer.finish(start_s)
            averaged = self._average(batch)
            if averaged is None:
                self._drop_round()
                return
            verdict, step_start_s = averaged, time.perf_counter()
        self.trainer.step(self._global_step)
        end_s, step_ms = self.trainer.finish(step_start_s)
        if batch.size > 0:
            self._record(batch, start_s, end_s, compute_ms + step_ms)
        self._global_step += self._logic.active_ranks()
        self._conclude(batch, verdict)

    def _drop_round(self) -> None:
        """The round's meeting was aborted: end without its step, as all ranks do that waited in it."""
        self.trainer.optimizer.zero_grad(set_to_none=True)
        self._logic.aborted()

    def _record(self, batch: SyncBatch, start_s: float, end_s: float, busy_ms: float) -> None:
        self.record(
            round_=0,
            epoch=batch.epoch,
            size=batch.size,
            is_full=batch.size == self._logic.full_size,
            busy_ms=busy_ms,
            start_s=start_s,
            end_s=end_s,
        )

    def _read_ahead(self) -> None:
        batch = self._logic.next_batch
        if batch is not None and batch.size > 0:
            self.trainer.read_ahead(epoch=batch.epoch, offset=batch.offset, size=batch.size)

    def _conclude(self, batch: SyncBatch, verdict: _Verdict) -> None:
        self._is_leader = verdict.leader == self.seat.rank
        if not self.job.is_single:
            self.trainer.num_updates += 1
            if self._is_leader:
                self._num_syncs += 1
                self._sync_ms += verdict.cost_ms
        self._logic.stepped(stop=verdict.stop)
        if verdict.is_excluded and self.job.meets:  # through the CPU, the coordinator has counted them
            self._discarded += batch.size
        self.note_excluded(verdict.is_excluded)  # parameters and optimizer are untouched: only a gradient was lost
        if batch.is_last:
            self._end_epoch(batch.epoch)

    def _end_epoch(self, epoch: int) -> None:
        self.flush()
        self.ledger.averaged((epoch,))
        if not self._is_leader:
            return
        keep = self.job.keeps_epoch(epoch)
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
                global_step=self._global_step,
                payload=self.trainer.replica.state().clone() if keep else None,
            )
        )

    # Averaging

    def _average(self, batch: SyncBatch) -> _Verdict | None:
        if self.job.is_single:
            return ALONE
        state = self.trainer.replica.gradients()
        is_finite = state.is_finite()
        self.check_finite(is_finite)
        if self.job.meets:
            return self._meet(batch, state, is_finite)
        return self._send_and_wait(batch, state, is_finite)

    def _meet(self, batch: SyncBatch, state: ReplicaState, is_finite: bool) -> _Verdict | None:
        entry = self.ledger.gradient_entry(round_=batch.round, num_samples=batch.size, is_finite=is_finite)
        entered_s = time.perf_counter()
        result = self.meet(Contribution(entry=entry, state=state))
        if result is None:
            return None
        waited_ms = max(0.0, 1e3 * (time.perf_counter() - entered_s) - result.cost_ms)
        self.trainer.idle.sync_ms += result.cost_ms
        self.trainer.idle.waited(waited_ms, has_data=batch.size > 0)
        self.trainer.replica.take_gradients(result.has_grad)
        return _Verdict(
            stop=result.stop,
            leader=result.leader,
            cost_ms=result.cost_ms,
            is_excluded=self.seat.rank in result.excluded,
        )

    def _send_and_wait(self, batch: SyncBatch, state: ReplicaState, is_finite: bool) -> _Verdict:
        entry = self.ledger.gradient_entry(round_=batch.round, num_samples=batch.size, is_finite=is_finite)
        payload = state if self.trainer.device.type == "cpu" else state.clone()
        start_s = time.perf_counter()
        self.send(Snapshot(entry=entry, payload=payload))
        update = self._receive_update()
        if update.payload is None:
            raise AveragingError("there are no gradients to step with: the run has failed")
        assert isinstance(update.payload, ReplicaState)
        state.copy_from(update.payload)
        self.trainer.replica.take_gradients(update.payload.has_grad)
        cost_ms = 1e3 * (time.perf_counter() - start_s)
        self.trainer.idle.sync_ms += cost_ms
        return _Verdict(stop=update.stop, leader=update.leader, cost_ms=cost_ms, is_excluded=update.is_excluded)

    def _receive_update(self) -> Update:
        while True:
            message = self.receive()
            if isinstance(message, Update):
                return message
            if message is not None:
                self._logic.handle(message)
