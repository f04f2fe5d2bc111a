"""Local SGD: the coordinator of the policies cadence and async, over an all-reduce or through the CPU.

Over an all-reduce (``meets``) a rank whose window has ended enters the rendezvous by itself; ranks without data are
told to (``SyncNow``), so that a round ends once every rank with data has done its part. Through the CPU, averaging
starts when every window has ended: Idle -> Collecting -> Computing -> Idle, while the ranks train on.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flodl_core.commands import ComputeAverage
from flodl_core.coordinator import Coordinator, RunPlan
from flodl_core.dealer import Dealer
from flodl_core.errors import NonFiniteError
from flodl_core.events import AnchorChanged, GuardChanged, SnapshotLate, SyncEvent, Throttled
from flodl_core.guard import ConvergenceGuard
from flodl_core.local_options import LocalOptions
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
from flodl_core.pace import Pace, RoundWork, Windows
from flodl_core.policies import ApplyPolicy
from flodl_core.rounds import NO_COUNT
from flodl_core.snapshot_round import Phase, SnapshotRound
from flodl_core.tally import tally
from flodl_core.throttle import is_too_far_ahead

CALIBRATION_BATCHES = 2
"""Full batches of the slowest rank after which the first round is planned by speed instead of by equal counts."""
SNAPSHOT_BATCHES = 3
"""Batch times of its own that a rank has for its snapshot, beyond ``snapshot_timeout_s``."""


class LocalCoordinator(Coordinator):
    """See the module. Args as in ``Coordinator``, and how the run is paced."""

    def __init__(self, plan: RunPlan, options: LocalOptions, *, start_s: float) -> None:
        super().__init__(plan, start_s=start_s)
        self._options = options
        self._pace = Pace(
            plan.world_size,
            policy=options.policy,
            anchor=options.anchor,
            max_anchor=options.max_anchor,
            overhead_target=options.overhead_target,
            max_batch_diff=options.max_batch_diff,
            speed_hint=options.speed_hint,
        )
        batches_per_epoch = -(-plan.epoch_size // plan.batch_size)
        self._overshoot = OvershootLimit(batches_per_epoch, options.max_overshoot)
        self._dealer = Dealer(
            self.members,
            epoch_size=plan.epoch_size,
            batch_size=plan.batch_size,
            num_epochs=plan.num_epochs,
            overshoot=self._overshoot,
            is_progressive=options.progressive_dispatch,
            ratios=options.partition_ratios,
            speed_hint=options.speed_hint,
            max_batches=plan.max_steps,
        )
        self._guard = ConvergenceGuard(options.divergence_threshold)
        self._is_stable = True
        self._average = SnapshotRound()
        self._round = 0
        self._announced_round = -1
        self._window_done = dict.fromkeys(self.members, -1)
        self._met_round = dict.fromkeys(self.members, -1)
        self._told_to_meet = dict.fromkeys(self.members, -1)
        self._running = set(self.members)
        self._work: dict[int, RoundWork] = defaultdict(RoundWork)
        self._uncalibrated = set(self.members)
        self._raw_batches = dict.fromkeys(self.members, 0)
        self._raw_ms = dict.fromkeys(self.members, 0.0)
        self._slowest_in_round = 0
        self._counts: dict[int, Mapping[int, int]] = {}
        self._called_in = -1
        self._calibrated_early = False
        self._stall_ms = 0.0
        self._last_stall_ms = 0.0
        self._taken_ms = 0.0

    @property
    def anchor(self) -> int:
        """See ``Coordinator``."""
        return self._pace.anchor

    @property
    def current_epoch(self) -> int:
        """See ``Coordinator``."""
        return self._dealer.current_epoch

    @property
    def epoch_samples_done(self) -> int:
        """See ``Coordinator``."""
        return self._dealer.current_epoch_done

    # Start, dealing

    def _on_start(self) -> None:
        self._open_round(0)
        for rank in sorted(self.members):
            self._deal(rank)

    def _deal(self, rank: int) -> None:
        if self._is_shut_down or self.is_stopping:
            return
        for plan in self._dealer.deal(rank, round_batches=self._pace.count(rank)):
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
        self._maybe_stop_at_limit()

    def _maybe_stop_at_limit(self) -> None:
        """Stop once all that the limit of steps allows is trained; an epoch that ended with it is averaged first."""
        if self._dealer.is_exhausted and not self._dealer.has_unaveraged_epoch and not self._is_done:
            self._stop("completed")

    def _estimate_speed(self, report: BatchesDone) -> None:
        rank = report.rank
        if self._pace.batch_ms(rank) > 0 or report.num_full_batches == 0:
            return
        self._raw_batches[rank] += report.num_full_batches
        self._raw_ms[rank] += report.full_busy_ms
        if self._raw_batches[rank] >= CALIBRATION_BATCHES:
            self._uncalibrated.discard(rank)
        self._dealer.set_batch_ms(rank, self._raw_ms[rank] / self._raw_batches[rank])
        self._maybe_calibrate()

    def _maybe_calibrate(self) -> None:
        """Give the first round limits once every rank has a few batches behind it.

        Until then it has none: it ends when they are known or, where an epoch is too small for that, with the epoch.
        """
        if self._calibrated_early or self._announced_round > 0 or not self._dealer.all_measured:
            return
        if not self._uncalibrated:
            self._calibrated_early = True
            self._open_round(0)

    def _on_epoch_trained(self) -> None:
        if self._is_shut_down:
            return
        if self._options.meets:
            for rank in sorted(self.members):
                self._send(rank, SyncNow(round=self._round))
        self._deal_to_starved()

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
            self._call_in(message.round, rank)

    def _call_in(self, round_: int, first: int) -> None:
        """Async over an all-reduce: the first rank to reach its count calls the others in after their batch under way.

        Counts cannot follow a machine whose speed wavers: without this, each round would wait for the last count.
        """
        if self._options.policy is not ApplyPolicy.ASYNC or round_ != self._round or round_ == self._called_in:
            return
        if self._work[round_].num_batches[first] >= self._counts[round_].get(first, NO_COUNT):
            self._called_in = round_
            for rank in sorted(self._running):
                self._send(rank, SyncNow(round=round_))

    def _announce(self, round_: int) -> None:
        if round_ > self._announced_round and not self._is_done:
            self._open_round(round_)

    def _on_sync_done(self, message: SyncDone) -> None:
        self.book.discarded_samples += message.discarded_samples
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
        windows = self._windows(ranks)
        self._counts[round_] = windows.counts
        total = sum(windows.planned.values())
        for rank in ranks:
            self._send(
                rank,
                OpenRound(
                    round=round_,
                    deadline_ms=windows.deadline_ms,
                    count=windows.counts[rank],
                    planned=windows.planned[rank],
                    planned_total=total,
                ),
            )

    def _windows(self, ranks: Sequence[int]) -> Windows:
        if self._dealer.all_measured and (self._round > 0 or self._calibrated_early):
            return self._pace.windows(ranks, self._dealer.batch_ms)
        if self._options.speed_hint is not None and self._round == 0:
            return self._pace.hinted(ranks)
        return self._pace.unlimited(ranks)

    def _close_round(self, average_ms: float) -> None:
        """Learn from a round's work and the cost of its average; go on to the next."""
        before = self._pace.anchor
        work = self._work.pop(self._round, RoundWork())
        self._pace.close_round(work, average_ms=average_ms, hold=not self._is_stable)
        self._counts.pop(self._round, None)
        speeds = {rank: self._pace.batch_ms(rank) for rank in self.members}
        self._dealer.set_all_batch_ms({rank: ms for rank, ms in speeds.items() if ms > 0})
        if self._pace.anchor != before:
            self._emit(AnchorChanged(time_s=self._time_s, round=self._round, before=before, after=self._pace.anchor))
        self._round += 1
        self._slowest_in_round = 0
        self._running = {
            rank for rank in self.members if not self._dealer.is_idle(rank) and self._window_done[rank] < self._round
        }

    # Averages

    def _maybe_request(self) -> None:
        """CPU backend: start an average when every window has ended, or an epoch has."""
        is_idle = self._average.phase is Phase.IDLE
        if self._options.meets or not is_idle or self._is_shut_down or not self.members:
            return
        if self.is_stopping:
            self._shut_down(hand_in=self.members)
        elif self._dealer.has_unaveraged_epoch or not self._running:
            self._request(self._round)

    def _request(self, round_: int) -> None:
        self._average.collect(round_, {rank: self._snapshot_limit_s(rank) for rank in sorted(self.members)})
        self._send_all(RequestParams(round=round_))
        self._close_round(self._stall_ms + self._taken_ms)
        self._last_stall_ms, self._stall_ms = self._stall_ms, 0.0
        self._announce(round_ + 1)

    def _snapshot_limit_s(self, rank: int) -> float:
        batch_ms = self._dealer.batch_ms(rank)
        if batch_ms == 0:
            return float("inf")  # before its first batches a rank may be compiling or warming up
        return self._now_s + self._snapshot_timeout_s + SNAPSHOT_BATCHES * batch_ms / 1e3

    @property
    def _snapshot_timeout_s(self) -> float:
        return self._options.snapshot_timeout_s * self._average.patience

    @property
    def _policy_deadline_s(self) -> float | None:
        """The first limit of a snapshot."""
        return self._average.next_limit_s

    def _on_tick(self) -> None:
        for rank in self._average.late(self._now_s):
            limit_s = self._snapshot_timeout_s
            self._emit(SnapshotLate(time_s=self._time_s, rank=rank, round=self._average.round, limit_s=limit_s))
            if self._average.snapshots:
                self._average.leave_behind(rank)
            else:
                self._average.wait_on(rank, self._now_s + limit_s)  # there is nothing to average yet
        self._maybe_compute()
        self._maybe_request()

    def _on_snapshot(self, message: Snapshot) -> None:
        rank = message.entry.rank
        if rank not in self.members:
            return
        if self._average.add(message):
            self._maybe_compute()
        else:
            self._send(rank, Update(round=message.entry.round, payload=None, global_step=self.book.global_step))

    def _maybe_compute(self) -> None:
        if not self._average.is_complete:
            return
        snapshots = self._average.snapshots
        if not snapshots:  # all that were awaited are gone
            self._average.finish()
            return
        entries = [snapshot.entry for snapshot in snapshots.values()]
        terms = tally(entries, epochs=self._dealer.open_epochs, epoch_size=self.plan.epoch_size)
        if terms is None:
            self._average.finish()
            self.callback_error = NonFiniteError("the training has diverged: no replica is finite")
            self._stop("failed")
            return
        self._average.compute()
        self._out.append(ComputeAverage(round=self._average.round, snapshots=dict(snapshots), tally=terms))

    def _on_averaged(self, message: Averaged) -> None:
        message = self._with_absent(message)
        self.num_syncs += 1
        self.book.discarded_samples += message.discarded_samples
        self._taken_ms = message.taken_ms
        self._dealer.averaged(message.epochs)
        self._judge(message)
        self._average_event(message)
        if self._options.meets:
            self._close_round(message.cost_ms)
        else:
            for rank in self._average.finish():
                if rank in self.members:
                    self._send_update(rank, message)
        self._end_epochs(message.epochs, message.payload if message.epochs else None)
        self._maybe_stop_at_limit()
        if self._is_done and not self.is_stopping:
            self._complete()
        elif not self._options.meets:  # those that meet are dealt to once they have reported back
            self._deal_to_starved()

    def _with_absent(self, message: Averaged) -> Averaged:
        """Its global step holds the batches of late and lost ranks as well, which were not there to bring theirs."""
        absent = set(range(self.plan.world_size)) - message.weights.keys() - set(message.excluded)
        return replace(message, global_step=message.global_step + self.book.batches_of(absent)) if absent else message

    def _judge(self, message: Averaged) -> None:
        """Hold anchor and overshoot where they are while replicas drift apart."""
        was_stable = self._is_stable
        self._is_stable = self._guard.observe(message.divergence)
        self._overshoot.on_average(stable=self._is_stable and not message.excluded)
        if self._is_stable != was_stable:
            divergence = max(message.divergence.values(), default=0.0)
            self._emit(
                GuardChanged(
                    time_s=self._time_s, round=message.round, is_holding=not self._is_stable, divergence=divergence
                )
            )

    def _deal_to_starved(self) -> None:
        for rank in self._dealer.starved:
            if rank in self.members:
                self._deal(rank)

    def _send_update(self, rank: int, message: Averaged) -> None:
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

    def _average_event(self, message: Averaged) -> None:
        # through the CPU the workers' stall counts, not the computing beside them; that of this round is not known yet
        duration_ms = message.cost_ms if self._options.meets else self._last_stall_ms
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
                cosine=message.cosine,
                magnitude=message.magnitude,
                excluded=message.excluded,
                anchor=self._pace.anchor,
            )
        )

    # The end

    def _complete(self) -> None:
        for rank in sorted(self.members):
            for plan in self._dealer.epochs_without_work(rank, range(self.plan.num_epochs)):
                self._send(rank, StartEpoch(plan=plan))
        self._shut_down(hand_in=())

    def _on_stop(self) -> None:
        if self._options.meets or self._average.phase is Phase.IDLE:
            self._shut_down(hand_in=self.members)
        # else the average under way is finished first: what was trained is in it

    def _give_up_average(self) -> None:
        self._average.finish()
        self._shut_down(hand_in=self.members)

    def _on_lost(self, rank: int) -> None:
        self._dealer.remove(rank)
        self._uncalibrated.discard(rank)
        self._running.discard(rank)
        self._average.go_on_without(rank)
        self._maybe_compute()
        self._maybe_request()
