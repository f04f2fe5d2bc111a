"""The simulated worker of cadence and async; the real one is ``flodl_core.local_worker``."""

from typing import TYPE_CHECKING

from flodl_core import worker_logic as act
from flodl_core.messages import Entry, Snapshot, SyncDone, Update, WindowDone
from flodl_core.simulation.rendezvous import Meeting
from flodl_core.simulation.spec import Moment
from flodl_core.simulation.worker import Activity, VirtualWorker

if TYPE_CHECKING:
    from flodl_core.simulation.simulation import Simulation


class VirtualLocalWorker(VirtualWorker):
    """Local SGD."""

    def __init__(self, run: "Simulation", rank: int) -> None:
        super().__init__(run, rank)
        self.logic = act.WorkerLogic(batch_size=run.spec.batch_size, meets=run.spec.options.meets)
        self._entries: dict[int, Entry] = {}

    def proceed(self) -> None:
        """See ``VirtualWorker``."""
        while self.is_free:
            for message in self.inbox:
                self.logic.handle(message)
            self.inbox.clear()
            action = self.logic.next_action()
            if isinstance(action, act.Wait):
                self.rest(has_data=self.logic.has_data)
                return
            self._do(action)

    def _do(self, action: act.Action) -> None:
        match action:
            case act.TrainBatch():
                self._train(action)
            case act.BeginEpoch():
                self.begin_epoch(action.epoch)
            case act.EndWindow():
                self.flush()
                self.send(WindowDone(rank=self.rank, round=action.round))
            case act.Meet():
                self.flush()
                self.enter(self.ledger.entry(round_=action.round))
            case act.TakeSnapshot():
                self._take_snapshot(action.round)
            case act.TakeUpdate():
                self._take_update(action.update)
            case act.Exit():
                self.exit(hand_in=action.hand_in)

    def _train(self, action: act.TrainBatch) -> None:
        round_ = self.logic.round
        self.flush_before(round_=round_, epoch=action.epoch, is_urgent=action.is_last_of_queue)

        def then(start_s: float, busy_ms: float) -> None:
            self.record(
                round_=round_,
                epoch=action.epoch,
                offset=action.offset,
                size=action.size,
                start_s=start_s,
                busy_ms=busy_ms,
            )
            self.is_free = True
            self.logic.batch_done(busy_ms=busy_ms, size=action.size)
            self.proceed()

        self.train(epoch=action.epoch, size=action.size, then=then)

    # All-reduce

    def met(self, meeting: Meeting) -> None:
        """See ``VirtualWorker``."""
        if self.activity is Activity.ENDED:
            return
        self.leave_meeting(meeting.cost_ms)
        self.ledger.averaged(meeting.epochs)
        self.logic.met()
        self.send(SyncDone(rank=self.rank, round=meeting.round, stall_ms=meeting.cost_ms))
        self.proceed()

    def meeting_closed(self) -> None:
        """See ``VirtualWorker``."""
        self.is_free = True
        self.logic.meeting_closed()
        self.proceed()

    # Through the CPU

    def _take_snapshot(self, round_: int) -> None:
        self.flush()
        if self.is_end(Moment.SNAPSHOT):
            self.die()
            return

        def then() -> None:
            entry = self._entries[round_] = self.ledger.entry(round_=round_)
            self.send(Snapshot(entry=entry, payload=None))
            self.proceed()

        self.spend(self.run.spec.stall_ms / 2, then)

    def _take_update(self, update: Update) -> None:
        if self.is_end(Moment.UPDATE):
            self.die()
            return
        entry = self._entries.pop(update.round)
        if update.payload is None:
            self.ledger.take_back(entry)
            return

        def then() -> None:
            self.ledger.averaged(update.epochs)
            self.send(SyncDone(rank=self.rank, round=update.round, stall_ms=self.run.spec.stall_ms))
            self.proceed()

        self.spend(self.run.spec.stall_ms / 2, then)
