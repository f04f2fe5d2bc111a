"""Sync: gradients are averaged after every batch, so that the run equals one process on the concatenated batch.

Which samples a rank takes in which round follows from the epoch's size alone, so the coordinator is not in the loop:
over an all-reduce the ranks meet by themselves; through the CPU it passes gradients to the averaging thread and back.
A run on a single device is the same with nothing to average.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from flodl_core.commands import ComputeAverage, Emit, StopMeetings
from flodl_core.coordinator import Coordinator, RunPlan
from flodl_core.errors import NonFiniteError
from flodl_core.events import SyncEvent
from flodl_core.messages import (
    Averaged,
    BatchesDone,
    EpochPlan,
    Snapshot,
    StartEpoch,
    ToCoordinator,
    Update,
)
from flodl_core.run_book import STEP_WINDOW_S
from flodl_core.sync_logic import round_sizes
from flodl_core.tally import tally

PLANS_AHEAD = 2
"""Plans that a worker knows of, so that it never waits for the next."""
ROUNDS_PER_PLAN = 64
"""Rounds in a plan where epochs are dealt bit by bit."""


class SyncCoordinator(Coordinator):
    """See the module.

    Args:
        plan: The run.
        mediated: Whether gradients go through the coordinator (CPU backend).
        start_s: When the run starts.
        is_progressive: Whether an epoch is dealt a few rounds at a time; what is trained is the same.
        ratios: Share of each rank in a round, or None for equal ones.
    """

    def __init__(
        self,
        plan: RunPlan,
        *,
        mediated: bool,
        start_s: float,
        is_progressive: bool = False,
        ratios: Sequence[float] | None = None,
    ) -> None:
        super().__init__(plan, start_s=start_s)
        self._mediated = mediated
        self._round_size = plan.batch_size * plan.world_size
        self._plan_size = ROUNDS_PER_PLAN * self._round_size if is_progressive else plan.epoch_size
        self._next_epoch, self._next_offset = 0, 0
        self._ratios = ratios
        self._dealt_steps = 0
        self._dealt_samples = 0
        self._trained_samples = 0
        self._done: dict[int, int] = defaultdict(int)
        self._stepped: dict[int, Averaged] = {}
        self._reported_epoch = -1
        self._snapshots: dict[int, Snapshot] = {}
        self._is_computing = False
        self._pending_syncs = 0
        self._pending_ms = 0.0
        self._pending_since_s = start_s
        self._last_round = 0

    @property
    def current_epoch(self) -> int:
        """See ``Coordinator``."""
        return self._reported_epoch + 1

    @property
    def epoch_samples_done(self) -> int:
        """See ``Coordinator``."""
        return self._done[self.current_epoch] if self.current_epoch < self.plan.num_epochs else 0

    def _on_start(self) -> None:
        self._deal()

    def _deal(self) -> None:
        """Keep the workers ahead by a few plans."""
        while self._dealt_samples - self._trained_samples <= (PLANS_AHEAD - 1) * self._plan_size:
            size = self._next_size()
            if size == 0 or self.is_stopping:
                return
            plan = EpochPlan(epoch=self._next_epoch, offset=self._next_offset, size=size)
            self._dealt_samples += size
            self._dealt_steps += self._steps(size)
            self._next_offset += size
            if self._next_offset == self.plan.epoch_size:
                self._next_epoch, self._next_offset = self._next_epoch + 1, 0
            self._send_all(StartEpoch(plan=plan))

    def _next_size(self) -> int:
        """Samples of the next plan; 0 at the end of the run."""
        if self._next_epoch == self.plan.num_epochs:
            return 0
        size = min(self._plan_size, self.plan.epoch_size - self._next_offset)
        if self.plan.max_steps is None:
            return size
        steps_left = max(0, self.plan.max_steps - self._dealt_steps)
        rounds_left = -(-steps_left // self._steps(self._round_size))
        return min(size, rounds_left * self._round_size)

    def _steps(self, num_samples: int) -> int:
        """Steps of all ranks in a stretch of rounds; a rank without samples in a round does not add one."""
        num_full, rest = divmod(num_samples, self._round_size)
        return num_full * self._steps_of_round(self._round_size) + self._steps_of_round(rest)

    def _steps_of_round(self, num_samples: int) -> int:
        sizes = round_sizes(num_samples, world_size=self.plan.world_size, ratios=self._ratios)
        return sum(size > 0 for size in sizes)

    def _maybe_stop_at_limit(self) -> None:
        """Stop once all that the limit of steps allows is trained; an epoch that ended with it is reported first."""
        is_cut = self._trained_samples == self._dealt_samples and self._next_size() == 0
        in_epoch = self._done[self.current_epoch] if self.current_epoch < self.plan.num_epochs else 0
        if is_cut and self.current_epoch < self.plan.num_epochs and in_epoch < self.plan.epoch_size:
            self._stop("completed")

    def _on_message(self, message: ToCoordinator) -> None:
        match message:
            case BatchesDone():
                self._done[message.epoch] += message.num_samples
                self._trained_samples += message.num_samples
                self._count_syncs(message.round, message.num_syncs, message.sync_ms)
                self._deal()
                self._maybe_end_epoch()
                self._maybe_stop_at_limit()
            case Snapshot():
                self._snapshots[message.entry.rank] = message
                self._maybe_compute()
            case Averaged() if message.epochs:
                self._stepped[message.epochs[-1]] = message
                self._maybe_end_epoch()
                self._maybe_stop_at_limit()
            case Averaged():
                self._on_gradients(message)

    # Epochs

    def _maybe_end_epoch(self) -> None:
        """End the epoch once the leading rank has taken its last step, and the others' reports are in too."""
        epoch = self._reported_epoch + 1
        if epoch not in self._stepped or self._done[epoch] < self.plan.epoch_size:
            return
        message = self._stepped.pop(epoch)  # the leader's state is everybody's
        del self._done[epoch]
        self._reported_epoch = epoch
        self._emit_syncs()
        self._end_epochs(message.epochs, message.payload)
        if self._reported_epoch == self.plan.num_epochs - 1 and not self.is_stopping:
            self._shut_down(hand_in=())

    # Gradients through the coordinator

    def _maybe_compute(self) -> None:
        if self._is_computing or not self._snapshots or self._snapshots.keys() < self.members:
            return
        snapshots, self._snapshots = self._snapshots, {}
        entries = [snapshot.entry for snapshot in snapshots.values()]
        terms = tally(entries, epochs=(), epoch_size=self.plan.epoch_size)
        if terms is None:
            self.callback_error = NonFiniteError("no rank has finite gradients: the training has diverged")
            self._stop("failed")
            self._answer(round_=entries[0].round, payload=None, global_step=self.book.global_step)
            return
        self._is_computing = True
        self._out.append(ComputeAverage(round=entries[0].round, snapshots=snapshots, tally=terms))

    def _on_gradients(self, message: Averaged) -> None:
        self._is_computing = False
        self.book.discarded_samples += message.discarded_samples
        self._answer(
            round_=message.round,
            payload=message.payload,
            global_step=message.global_step,
            excluded=message.excluded,
            weights=message.weights,
        )

    def _answer(
        self,
        *,
        round_: int,
        payload: object,
        global_step: int,
        excluded: tuple[int, ...] = (),
        weights: Mapping[int, int] | None = None,
    ) -> None:
        # a rank without samples has nothing to report, and could not speak for all
        able = {rank for rank, num_samples in (weights or {}).items() if num_samples > 0} & self.members
        leader = min(able or self.members, default=0)
        for rank in sorted(self.members):
            self._send(
                rank,
                Update(
                    round=round_,
                    payload=payload,
                    global_step=global_step,
                    is_excluded=rank in excluded,
                    stop=self.is_stopping,
                    leader=leader,
                ),
            )

    # Events

    def _count_syncs(self, round_: int, num_syncs: int, sync_ms: float) -> None:
        self.num_syncs += num_syncs
        self._pending_syncs += num_syncs
        self._pending_ms += sync_ms
        self._last_round = max(self._last_round, round_)
        if self._now_s - self._pending_since_s >= STEP_WINDOW_S:
            self._emit_syncs()

    def _emit_syncs(self) -> None:
        if self._pending_syncs:
            self._out.append(
                Emit(
                    event=SyncEvent(
                        time_s=self._time_s,
                        round=self._last_round,
                        epoch=None,
                        global_step=self.book.global_step,
                        num_syncs=self._pending_syncs,
                        duration_ms=self._pending_ms,
                        wait_ms={},
                        weights={},
                        divergence={},
                        excluded=(),
                        anchor=1,
                    )
                )
            )
        self._pending_syncs, self._pending_ms, self._pending_since_s = 0, 0.0, self._now_s

    # The end

    def _settle(self) -> None:
        self._emit_syncs()
        super()._settle()

    def _on_stop(self) -> None:
        self._out.append(StopMeetings())
        self._shut_down(hand_in=self.members)  # one would do, but whichever it is may be lost on the way

    def _of_the_end(self, snapshots: dict[int, Snapshot]) -> dict[int, Snapshot]:
        """All replicas are the same: one of them stands for all, and no rounding comes in."""
        finite = [rank for rank, snapshot in snapshots.items() if snapshot.entry.is_finite]
        first = min(finite or snapshots, default=None)
        return {} if first is None else {first: snapshots[first]}

    def _give_up_average(self) -> None:
        self._is_computing = False
        self._answer(round_=self._last_round, payload=None, global_step=self.book.global_step)

    def _on_lost(self, rank: int) -> None:
        self._snapshots.pop(rank, None)
        self._maybe_compute()
