"""Local SGD: the coordinator of the policies cadence and async, over an all-reduce or through the CPU.

Over an all-reduce (``meets``) a rank whose window has ended enters the rendezvous by itself; ranks without data are
told to (``SyncNow``), so that a round ends once every rank with data has done its part. Through the CPU, averaging
starts when every window has ended: Idle -> Collecting -> Computing -> Idle, while the ranks train on.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from enum import Enum, auto
from statistics import median

from flodl_core.commands import ComputeAverage
from flodl_core.coordinator import Coordinator, RunPlan
from flodl_core.dealer import Dealer
from flodl_core.elche import ElChe
from flodl_core.errors import NonFiniteError
from flodl_core.events import AnchorChanged, SnapshotLate, SyncEvent, Throttled
from flodl_core.messages import (
    Averaged,
    BatchesDone,
    OpenRound,
    RequestParams,
    Snapshot,
    StartEpoch,
    SyncDone,
    SyncNow,
    Throttle,
    ToCoordinator,
    Update,
    WindowDone,
)
from flodl_core.overshoot import OvershootLimit
from flodl_core.policies import ApplyPolicy
from flodl_core.rounds import NO_COUNT, batches_within, choose_deadline_ms
from flodl_core.tally import tally
from flodl_core.throttle import is_too_far_ahead

CALIBRATION_BATCHES = 2
"""Full batches of the slowest rank after which the first round is planned by speed instead of by equal counts."""
NUM_COSTS = 5
"""Averages whose median cost is fed to El Che."""
SNAPSHOT_BATCHES = 3
"""Batch times of its own that a rank has for its snapshot, beyond ``snapshot_timeout_s``."""


class Phase(Enum):
    """Where an average through the CPU stands."""

    IDLE = auto()
    COLLECTING = auto()
    COMPUTING = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """How a Local SGD run is paced; the builder's methods of the same names say what each means."""

    policy: ApplyPolicy = ApplyPolicy.CADENCE
    meets: bool = False
    anchor: int = 10
    max_anchor: int = 200
    overhead_target: float = 0.03
    max_batch_diff: int | None = None
    max_overshoot: int | None = None
    snapshot_timeout_s: float = 5.0


@dataclass(slots=True)
class _RoundWork:
    """Full batches and their busy time by rank, in one round."""

    num_batches: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    full_batches: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    full_ms: dict[int, float] = field(default_factory=lambda: defaultdict(float))


class LocalCoordinator(Coordinator):
    """See the module. Args as in ``Coordinator``, and how the run is paced."""

    def __init__(self, plan: RunPlan, options: LocalOptions, *, start_s: float) -> None:
        super().__init__(plan, start_s=start_s)
        self._options = options
        self._elche = ElChe(
            plan.world_size,
            options.anchor,
            overhead_target=options.overhead_target,
            max_anchor=options.max_anchor,
            max_batch_diff=options.max_batch_diff,
        )
        batches_per_epoch = -(-plan.epoch_size // plan.batch_size)
        self._overshoot = OvershootLimit(batches_per_epoch, options.max_overshoot)
        self._dealer = Dealer(
            self.members,
            epoch_size=plan.epoch_size,
            batch_size=plan.batch_size,
            num_epochs=plan.num_epochs,
            overshoot=self._overshoot,
        )
        self._phase = Phase.IDLE
        self._round = 0
        self._announced_round = -1
        self._window_done = dict.fromkeys(self.members, -1)
        self._met_round = dict.fromkeys(self.members, -1)
        self._told_to_meet = dict.fromkeys(self.members, -1)
        self._running = set(self.members)
        self._work: dict[int, _RoundWork] = defaultdict(_RoundWork)
        self._raw_batches = dict.fromkeys(self.members, 0)
        self._raw_ms = dict.fromkeys(self.members, 0.0)
        self._slowest_in_round = 0
        self._calibrated_early = False
        self._stall_ms = 0.0
        self._average_ms = 0.0
        self._costs_ms: deque[float] = deque(maxlen=NUM_COSTS)
        self._snapshots: dict[int, Snapshot] = {}
        self._expected: dict[int, float] = {}

    @property
    def anchor(self) -> int:
        """See ``Coordinator``."""
        return self._elche.anchor

    @property
    def current_epoch(self) -> int:
        """See ``Coordinator``."""
        return self._dealer.current_epoch

    @property
    def epoch_samples_done(self) -> int:
        """See ``Coordinator``."""
        return self._dealer.current_epoch_done

    @property
    def open_epochs(self) -> range:
        """Epochs that may have begun and are in no average yet: what a rendezvous must look out for."""
        return self._dealer.open_epochs

    # Start, dealing

    def _on_start(self) -> None:
        self._open_round(0)
        for rank in sorted(self.members):
            self._deal(rank)

    def _deal(self, rank: int) -> None:
        if self._is_shut_down or self.is_stopping:
            return
        for plan in self._dealer.deal(rank, round_batches=self._elche.counts[rank]):
            self._send(rank, StartEpoch(plan=plan))
        self._note_work_state(rank)

    def _note_work_state(self, rank: int) -> None:
        """A rank without data counts as having ended its window; over an all-reduce it is told to go and wait."""
        if not self._dealer.is_idle(rank):
            if self._window_done[rank] < self._round:
                self._running.add(rank)
            return
        self._running.discard(rank)
        round_ = self._met_round[rank] + 1
        if self._options.meets and self._told_to_meet[rank] < round_ and not self._is_done:
            self._told_to_meet[rank] = round_
            self._send(rank, SyncNow(round=round_))

    @property
    def _is_done(self) -> bool:
        return self._dealer.averaged_epoch == self.plan.num_epochs - 1

    # Messages

    def _on_message(self, message: ToCoordinator) -> None:
        match message:
            case BatchesDone():
                self._on_batches(message)
            case WindowDone():
                self._on_window_done(message)
            case SyncDone():
                self._on_sync_done(message)
            case Snapshot():
                self._on_snapshot(message)
            case Averaged():
                self._on_averaged(message)
        self._maybe_request()

    def _on_batches(self, report: BatchesDone) -> None:
        rank = report.rank
        if rank not in self.members:
            return
        work = self._work[report.round]
        work.num_batches[rank] += report.num_batches
        work.full_batches[rank] += report.num_full_batches
        work.full_ms[rank] += report.full_busy_ms
        self._estimate_speed(report)
        moved_on = self._dealer.complete(rank, report.epoch, report.num_samples)
        self._throttle(rank, report.round)
        self._deal(rank)
        if moved_on:
            self._on_epoch_trained()

    def _estimate_speed(self, report: BatchesDone) -> None:
        rank = report.rank
        if self._elche.ms_per_batch[rank] > 0 or report.num_full_batches == 0:
            return
        self._raw_batches[rank] += report.num_full_batches
        self._raw_ms[rank] += report.full_busy_ms
        self._dealer.set_batch_ms(rank, self._raw_ms[rank] / self._raw_batches[rank])
        self._maybe_calibrate()

    def _maybe_calibrate(self) -> None:
        """Give the first round limits once every rank has a few batches behind it.

        Until then it has none: it ends when they are known or, where an epoch is too small for that, with the epoch.
        """
        if self._calibrated_early or self._announced_round > 0 or not self._dealer.all_measured:
            return
        if min(self._raw_batches[rank] for rank in self.members) >= CALIBRATION_BATCHES:
            self._calibrated_early = True
            self._open_round(0)

    def _on_epoch_trained(self) -> None:
        if self._is_shut_down:
            return
        if self._options.meets:
            for rank in sorted(self.members):
                self._send(rank, SyncNow(round=self._round))
        for rank in self._dealer.starved:
            if rank in self.members:
                self._deal(rank)

    def _throttle(self, rank: int, round_: int) -> None:
        limit = self._options.max_batch_diff
        if limit is None or round_ != self._round or self._window_done[rank] >= round_:
            return
        done = self._work[round_].num_batches
        if not is_too_far_ahead(done[rank], self._slowest_in_round, limit):
            return
        # the slowest count only grows within a round: look again before believing the remembered one
        self._slowest_in_round = min((done[other] for other in self._running if other != rank), default=done[rank])
        if is_too_far_ahead(done[rank], self._slowest_in_round, limit):
            self._window_done[rank] = round_
            self._running.discard(rank)
            self._send(rank, Throttle(round=round_))
            ahead = done[rank] - self._slowest_in_round
            self._emit(Throttled(time_s=self._time_s, rank=rank, round=round_, num_batches_ahead=ahead))

    def _on_window_done(self, message: WindowDone) -> None:
        rank = message.rank
        if rank not in self.members:
            return
        self._window_done[rank] = max(self._window_done[rank], message.round)
        if message.round == self._round:
            self._running.discard(rank)
        if self._options.meets and not self._is_shut_down:
            self._announce(message.round + 1)  # before the meeting, so that nobody waits for it after

    def _announce(self, round_: int) -> None:
        if round_ > self._announced_round and not self._is_done:
            self._open_round(round_)

    def _on_sync_done(self, message: SyncDone) -> None:
        if message.rank not in self.members:
            return
        self._met_round[message.rank] = max(self._met_round[message.rank], message.round)
        self._stall_ms = max(self._stall_ms, message.stall_ms)
        if not self._is_shut_down:
            self._deal(message.rank)

    # Rounds

    def _open_round(self, round_: int) -> None:
        self._announced_round = round_
        ranks = sorted(self.members)
        deadline_ms, counts, planned = self._plan_windows(ranks)
        total = sum(planned.values())
        for rank in ranks:
            self._send(
                rank,
                OpenRound(
                    round=round_,
                    deadline_ms=deadline_ms,
                    count=counts[rank],
                    planned=planned[rank],
                    planned_total=total,
                ),
            )

    def _plan_windows(self, ranks: list[int]) -> tuple[float | None, dict[int, int], dict[int, int]]:
        """Deadline, most batches by rank, and expected batches by rank, of a round."""
        if not self._dealer.all_measured or not (self._elche.is_calibrated or self._calibrated_early):
            # no limit: a count would let fast ranks wait for slow ones that nobody has measured yet
            planned = {rank: self._elche.counts[rank] for rank in ranks}
            return None, dict.fromkeys(ranks, NO_COUNT), planned
        batch_ms = [self._dealer.batch_ms(rank) for rank in ranks]
        deadline_ms = choose_deadline_ms(batch_ms, anchor=self._elche.anchor, average_ms=self._average_ms)
        # from the speeds themselves: El Che's own counts move in steps of 10 %, and a fast rank would wait that long
        fitting = {rank: batches_within(deadline_ms, ms) for rank, ms in zip(ranks, batch_ms, strict=True)}
        diff = self._options.max_batch_diff
        most = NO_COUNT if diff is None else min(fitting.values()) + diff
        planned = {rank: min(most, count) for rank, count in fitting.items()}
        if self._options.policy is ApplyPolicy.ASYNC:
            return None, planned, planned
        return deadline_ms, dict.fromkeys(ranks, most), planned

    def _close_round(self, average_ms: float) -> None:
        """Feed El Che with a round's work and the cost of averaging; go on to the next."""
        work = self._work.pop(self._round, None) or _RoundWork()
        before = self._elche.anchor
        ranks = range(self.plan.world_size)
        # the median of the last few: one hiccup of the machine must not stretch the rounds for long
        self._costs_ms.append(average_ms)
        self._average_ms = median(self._costs_ms)
        self._elche.report(
            [work.full_ms[rank] for rank in ranks], [work.full_batches[rank] for rank in ranks], self._average_ms
        )
        if self._elche.is_calibrated:
            for rank in self.members:
                if self._elche.ms_per_batch[rank] > 0:
                    self._dealer.set_batch_ms(rank, self._elche.ms_per_batch[rank])
        if self._elche.anchor != before:
            self._emit(AnchorChanged(time_s=self._time_s, round=self._round, before=before, after=self._elche.anchor))
        self._round += 1
        self._slowest_in_round = 0
        self._running = {
            rank for rank in self.members if not self._dealer.is_idle(rank) and self._window_done[rank] < self._round
        }

    # Averages

    def _maybe_request(self) -> None:
        """CPU backend: start an average when every window has ended, or an epoch has."""
        if self._options.meets or self._phase is not Phase.IDLE or self._is_shut_down or not self.members:
            return
        if self.is_stopping:
            self._shut_down(hand_in=self.members)
        elif self._dealer.has_unaveraged_epoch or not self._running:
            self._request(self._round)

    def _request(self, round_: int) -> None:
        self._phase = Phase.COLLECTING
        self._snapshots = {}
        limit_s = self._options.snapshot_timeout_s
        for rank in sorted(self.members):
            own_s = SNAPSHOT_BATCHES * self._dealer.batch_ms(rank) / 1e3
            # before its first batch a rank may be compiling or warming up: no limit yet
            has_trained = self._dealer.batch_ms(rank) > 0
            self._expected[rank] = self._now_s + limit_s + own_s if has_trained else float("inf")
            self._send(rank, RequestParams(round=round_))
        self._close_round(self._stall_ms)
        self._stall_ms = 0.0
        self._announce(round_ + 1)

    @property
    def next_deadline_s(self) -> float | None:
        """See ``Coordinator``: the first limit of a snapshot."""
        return min(self._expected.values()) if self._phase is Phase.COLLECTING and self._expected else None

    def _on_tick(self) -> None:
        if self._phase is not Phase.COLLECTING:
            return
        for rank in [rank for rank, limit_s in self._expected.items() if limit_s <= self._now_s]:
            limit_s = self._options.snapshot_timeout_s
            self._emit(SnapshotLate(time_s=self._time_s, rank=rank, round=self._round - 1, limit_s=limit_s))
            if self._snapshots:
                del self._expected[rank]  # the round goes on without it
            else:
                self._expected[rank] = self._now_s + limit_s  # there is nothing to average yet: wait on
        self._maybe_compute()

    def _on_snapshot(self, message: Snapshot) -> None:
        rank = message.entry.rank
        if rank not in self.members:
            return
        if rank not in self._expected or self._phase is not Phase.COLLECTING:
            late = Update(round=message.entry.round, payload=None, global_step=self.book.global_step)
            self._send(rank, late)
            return
        del self._expected[rank]
        self._snapshots[rank] = message
        self._maybe_compute()

    def _maybe_compute(self) -> None:
        if self._phase is not Phase.COLLECTING or self._expected:
            return
        if not self._snapshots:
            self._phase = Phase.IDLE
            return
        self._phase = Phase.COMPUTING
        entries = [snapshot.entry for snapshot in self._snapshots.values()]
        terms = tally(entries, epochs=self._dealer.open_epochs, epoch_size=self.plan.epoch_size)
        if terms is None:
            self._phase = Phase.IDLE
            self.callback_error = NonFiniteError("no replica has finite parameters: the training has diverged")
            self._stop("failed")
            return
        self._out.append(ComputeAverage(round=self._round - 1, snapshots=self._snapshots, tally=terms))

    def _on_averaged(self, message: Averaged) -> None:
        self.num_syncs += 1
        self.book.discarded_samples += message.discarded_samples
        self._dealer.averaged(message.epochs)
        if self._options.meets:
            self._average_event(message, message.cost_ms)
            self._close_round(message.cost_ms)
        else:
            self._average_event(message, self._average_ms)
            self._phase = Phase.IDLE
            for rank, snapshot in sorted(self._snapshots.items()):
                if rank in self.members:
                    self._send_update(rank, snapshot, message)
            self._snapshots = {}
        self._overshoot.on_average(stable=not message.excluded)
        self._end_epochs(message.epochs, message.payload if message.epochs else None)
        if self._is_done and not self.is_stopping:
            self._complete()
        else:
            for rank in self._dealer.starved:
                if rank in self.members and not self._options.meets:
                    self._deal(rank)

    def _send_update(self, rank: int, snapshot: Snapshot, message: Averaged) -> None:
        self._send(
            rank,
            Update(
                round=message.round,
                payload=message.payload,
                global_step=message.global_step,
                is_excluded=rank in message.excluded,
                epochs=message.epochs,
            ),
        )

    def _average_event(self, message: Averaged, duration_ms: float) -> None:
        self._emit(
            SyncEvent(
                time_s=self._time_s,
                round=message.round,
                epoch=message.epochs[-1] if message.epochs else None,
                global_step=message.global_step,
                num_syncs=1,
                duration_ms=duration_ms,
                wait_ms=message.wait_ms,
                weights=message.weights,
                divergence=message.divergence,
                excluded=message.excluded,
                anchor=self._elche.anchor,
            )
        )

    # The end

    def _complete(self) -> None:
        for rank in sorted(self.members):
            for plan in self._dealer.epochs_without_work(rank, range(self.plan.num_epochs)):
                self._send(rank, StartEpoch(plan=plan))
        self._shut_down(hand_in=())

    def _on_stop(self) -> None:
        if self._options.meets or self._phase is Phase.IDLE:
            self._shut_down(hand_in=self.members)
        # else the average under way is finished first: what was trained is in it

    def _on_lost(self, rank: int) -> None:
        self._dealer.remove(rank)
        self._running.discard(rank)
        self._expected.pop(rank, None)
        self._maybe_compute()
        self._maybe_request()
