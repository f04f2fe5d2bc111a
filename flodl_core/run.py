"""A run under way: its threads, and the loop that serves the coordinator.

Threads: ``ddp-coordinator`` (the loop here), ``ddp-worker-<rank>`` and ``ddp-callbacks`` (daemon: a ``train_fn`` or
``eval_fn`` that hangs cannot be joined), and ``ddp-averager``. Order of shutdown: the coordinator tells the workers to
end; the loop finishes when the last of them has; it joins their threads, then the averager, then the callbacks; then
the feeds close and ``done`` is set.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from flodl_core.averaging import Averager
from flodl_core.background import BackgroundThread
from flodl_core.channel import Cuttable, ThreadChannel
from flodl_core.commands import CloseMeetings, Command, ComputeAverage, Emit, EpochReady, Finish, Send, StopMeetings
from flodl_core.coordinator import Coordinator, RunPlan
from flodl_core.data import Permutations
from flodl_core.devices import device_summary, intra_op_threads, worker_label
from flodl_core.drift import Drift
from flodl_core.epoch_metrics import EpochMetrics
from flodl_core.errors import ChannelClosed, FlodlError
from flodl_core.events import Event, RunEnded, WorkerLost
from flodl_core.feed import Feed
from flodl_core.figures import figures_of
from flodl_core.job import Job
from flodl_core.learning_rate import scale_for
from flodl_core.local_coordinator import LocalCoordinator
from flodl_core.local_worker import LocalWorker
from flodl_core.meetings import Contribution, GradientMeeting, MeetingResult, ParameterMeeting
from flodl_core.messages import (
    FINAL_ROUND,
    Averaged,
    AveragingFailed,
    CallbackFailed,
    Shutdown,
    StopRequested,
    ToCoordinator,
    ToWorker,
    WorkerExiting,
)
from flodl_core.model_graph import ModelGraph, describe_model
from flodl_core.outer import make_outer
from flodl_core.pulse import Pulse, hang_of, late_ranks
from flodl_core.rendezvous import Rendezvous
from flodl_core.replica import Replica, ReplicaState
from flodl_core.run_book import RunTotals
from flodl_core.sync_coordinator import SyncCoordinator
from flodl_core.sync_worker import SyncWorker
from flodl_core.trained_state import TrainedState
from flodl_core.trainer import build_model
from flodl_core.worker import WorkerSeat, run_worker

log = logging.getLogger(__name__)

IDLE_S = 0.25
"""Longest sleep of the loop: how soon it sees that the main thread has ended."""
PROGRESS_S = 0.1
"""How often ``progress`` is brought up to date."""
JOIN_S = 5.0
"""How long ended workers' threads are waited for."""
CALLBACK_S = 20.0
"""How long a callback under way is waited for once the run was told to stop."""
MAX_EVENTS = 200_000
"""Events kept for an owner that does not read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands.

    Attributes:
        epoch: The lowest epoch of which a sample has not been trained; ``num_epochs`` at the end.
        epoch_samples: Samples of it that have been.
        epoch_size: Samples in an epoch.
        num_epochs: Epochs planned.
        totals: What the run has done so far.
        rank_speeds: Samples per second of busy time, by rank; 0 before a rank's first batch.
        num_syncs: Averages taken.
        anchor: Batches that the slowest rank does in a round.
        loss: Mean over the samples of the last fifth of a second or so, or NaN before there are any.
    """

    epoch: int
    epoch_samples: int
    epoch_size: int
    num_epochs: int
    totals: RunTotals
    rank_speeds: tuple[float, ...]
    num_syncs: int
    anchor: int
    loss: float


class Run:
    """Made by the caller's thread, then served by the coordinator's. Public methods may be called from any thread.

    Args:
        job: What to run.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.metrics: Feed[EpochMetrics] = Feed()
        self.events: Feed[Event] = Feed(MAX_EVENTS)
        self.done = threading.Event()
        self.finish: Finish | None = None
        self.state: TrainedState | None = None
        self._outer_threads = torch.get_num_threads()
        self._initial = self._build_initial()
        self._replica = Replica(self._initial)  # after this the initial model serves to evaluate and to publish
        self._inbox: ThreadChannel[ToCoordinator] = ThreadChannel()
        self._inboxes: list[ThreadChannel[ToWorker]] = [ThreadChannel() for _ in job.specs]
        self._gradients = GradientMeeting(world_size=job.world_size)
        # used by whoever averages: the rendezvous or the averaging thread, never both in one run
        self._outer = make_outer(job.outer, [flat.to("cpu") for flat in self._replica.params])
        self._rendezvous = self._make_rendezvous() if job.meets else None
        self._averager = Averager(self._outer)
        self._averaging = BackgroundThread("ddp-averager", on_error=self._on_averaging_error)
        self._averaging_round = 0
        self._callbacks = BackgroundThread("ddp-callbacks", on_error=self._on_callback_error, daemon=True)
        self._callback_error: BaseException | None = None
        self._ended: RunEnded | None = None
        self._thread = threading.Thread(target=self._serve, name="ddp-coordinator")
        self._workers: list[threading.Thread] = []
        self._pulses = [Pulse() for _ in job.specs]
        self._outboxes = [Cuttable(self._inbox) for _ in job.specs]
        self._given_up: set[int] = set()
        self._stop_requested = threading.Event()
        self.coordinator = self._make_coordinator()
        self._last_state: ReplicaState | None = None
        self._progress = self._make_progress()
        self._progress_s = 0.0
        self._graph: ModelGraph | None = None
        self._graph_lock = threading.Lock()

    # Making

    def _build_initial(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.job.seed)
            return build_model(self.job, self.job.devices[0])

    def _make_rendezvous(self) -> Rendezvous[Contribution, MeetingResult]:
        if self.job.is_sync:
            return Rendezvous(range(self.job.world_size), self._gradients)
        meeting = ParameterMeeting(
            epoch_size=self.job.epoch_size,
            num_epochs=self.job.num_epochs,
            keeps_epoch=self.job.keeps_epoch,
            post=self._inbox.send,
            outer=self._outer,
        )
        return Rendezvous(range(self.job.world_size), meeting)

    def _make_coordinator(self) -> Coordinator:
        job = self.job
        labels = [worker_label(spec, device) for spec, device in zip(job.specs, job.devices, strict=True)]
        plan = RunPlan(
            devices=tuple(labels),
            epoch_size=job.epoch_size,
            batch_size=job.batch_size,
            num_epochs=job.num_epochs,
            max_steps=job.max_steps,
            max_time_s=job.max_time_s,
        )
        now_s = time.perf_counter()
        if job.is_sync:
            mediated = not job.meets and not job.is_single
            options = job.options
            return SyncCoordinator(
                plan,
                mediated=mediated,
                is_progressive=options.progressive_dispatch,
                ratios=options.partition_ratios,
                start_s=now_s,
            )
        return LocalCoordinator(plan, job.options, start_s=now_s)

    def start(self) -> None:
        """Start all threads; returns at once."""
        job = self.job
        tail = f"policy={job.policy} backend={job.backend}" if not job.is_single else "single device"
        log.info("%s", device_summary(job.specs, job.devices, tail=tail))
        scale = scale_for(job.world_size, job.lr_scale_ratio)
        if scale != 1.0:
            log.info("lr scaled by %.2f (lr_scale_ratio=%g, world size %d)", scale, job.lr_scale_ratio, job.world_size)
        torch.manual_seed(job.seed)
        permutations = Permutations(seed=job.seed, num_samples=job.num_samples)
        for rank in range(job.world_size):
            seat = WorkerSeat(
                rank=rank,
                job=job,
                initial=self._initial,  # not written to before every worker has taken part in an average
                permutations=permutations,
                inbox=self._inboxes[rank],
                outbox=self._outboxes[rank],
                rendezvous=self._rendezvous,
                pulse=self._pulses[rank],
            )
            self._workers.append(self._worker_thread(seat))
        self._start_timeline()
        self._averaging.start()
        self._callbacks.start()
        # intra-op threads are set in each thread of the run, never in the caller's, which may go on with its own work
        self._callbacks.submit(lambda: torch.set_num_threads(intra_op_threads(job.devices)))
        for thread in (*self._workers, self._thread):
            thread.start()

    def _start_timeline(self) -> None:
        job = self.job
        if job.timeline is not None:
            labels = [worker_label(spec, device) for spec, device in zip(job.specs, job.devices, strict=True)]
            start_s = -self.coordinator.book.time_s(0.0)  # what the events' times count from
            job.timeline.start(labels, job.devices, start_s=start_s)

    def _worker_thread(self, seat: WorkerSeat) -> threading.Thread:
        make: Callable[[WorkerSeat], SyncWorker | LocalWorker] = SyncWorker if self.job.is_sync else LocalWorker
        return threading.Thread(target=run_worker, args=(seat, make), name=f"ddp-worker-{seat.rank}", daemon=True)

    # The owner's side

    def request_stop(self) -> None:
        """Let the run end after the batch under way. May be called twice, and after the end."""
        if not self._stop_requested.is_set():
            self._stop_requested.set()
            try:
                self._inbox.send(StopRequested())
            except ChannelClosed:
                log.debug("stop requested after the end")

    def abort_collectives(self) -> None:
        """Stop, and wake the workers that wait for others at the rendezvous. May be called twice, and after the end."""
        self.request_stop()
        if self._rendezvous is not None:
            self._rendezvous.close()

    def owns_current_thread(self) -> bool:
        """Whether the caller is one of the run's own threads."""
        current = threading.current_thread()
        return current in self._workers or current is self._thread or self._callbacks.is_current()

    @property
    def progress(self) -> Progress:
        """Where the run stands, at most a few tenths of a second old."""
        return self._progress

    def graph(self) -> ModelGraph:
        """The model's graph; the first call waits for the first batch and makes it, in the caller's thread.

        Raises:
            FlodlError: A worker asks before the first batch.
        """
        if threading.current_thread() in self._workers and not self.job.first_forward.is_settled:
            raise FlodlError("the model's graph is known from rank 0's first batch on: a worker cannot wait for that")
        with self._graph_lock:
            if self._graph is None:
                self._graph = describe_model(self._initial, self.job.first_forward.wait())
            return self._graph

    # The loop

    def _serve(self) -> None:
        try:
            self._execute(self.coordinator.start())
            while self.finish is None:
                self._serve_once()
        except BaseException as error:
            log.exception("the coordinator failed")
            self.finish = Finish(status="failed", payload=None, error=error)
            self._abandon()
        finally:
            self._wind_up()

    def _serve_once(self) -> None:
        message = self._inbox.receive(self._wait_s())
        now_s = time.perf_counter()
        if message is not None:
            self._execute(self.coordinator.handle(message, now_s))
        deadline_s = self.coordinator.next_deadline_s
        if deadline_s is not None and deadline_s <= now_s:
            self._execute(self.coordinator.tick(now_s))
        if now_s - self._progress_s >= PROGRESS_S:
            self._progress, self._progress_s = self._make_progress(), now_s
            self._give_up_hanging(now_s)
            if not threading.main_thread().is_alive():
                self.request_stop()

    def _give_up_hanging(self, now_s: float) -> None:
        limit_s = self.job.worker_timeout_s
        if limit_s is None:
            return
        late = late_ranks(self._pulses, limit_s=limit_s, now_s=now_s)
        for rank in sorted(set(late) - self._given_up):
            failure = hang_of(rank, self._workers[rank], limit_s=limit_s)
            log.error("%s\n%s", failure, failure.traceback)
            self._give_up(rank)
            self._execute(self.coordinator.handle(WorkerExiting(rank=rank, failure=failure), now_s))

    def _give_up(self, rank: int) -> None:
        """Go on without a worker that nothing can end: whatever it does from now on reaches nobody."""
        self._given_up.add(rank)
        self._pulses[rank].rest()
        self._outboxes[rank].cut()
        with contextlib.suppress(ChannelClosed):  # it has come to and ended in this very moment
            self._inboxes[rank].send(Shutdown(hand_in=False))
        self._inboxes[rank].close()
        if self._rendezvous is not None:
            self._rendezvous.leave(rank)

    def _wait_s(self) -> float:
        deadline_s = self.coordinator.next_deadline_s
        if deadline_s is None:
            return IDLE_S
        return min(IDLE_S, max(0.0, deadline_s - time.perf_counter()))

    def _execute(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Send():
                    self._send(command)
                case Emit():
                    self._emit(command.event)
                case EpochReady():
                    self._on_epoch(command)
                case ComputeAverage():
                    self._averaging.submit(partial(self._run_average, command))
                case CloseMeetings():
                    if self._rendezvous is not None and not self.job.is_sync:
                        self._rendezvous.close()
                case StopMeetings():
                    self._gradients.request_stop()
                case Finish():
                    self.finish = command

    def _send(self, command: Send) -> None:
        try:
            self._inboxes[command.rank].send(command.message)
        except ChannelClosed:
            log.debug("rank %d has ended: %s dropped", command.rank, type(command.message).__name__)

    def _emit(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            self._ended = event  # told once the last callback has had its chance to fail
            return
        if isinstance(event, WorkerLost):
            log.error("worker lost: %s", event.error)
        self._tell(event)

    def _tell(self, event: Event) -> None:
        if self.job.timeline is not None:
            self.job.timeline.on_event(event)
        self.events.put(event)

    def _timed(self, kind: str, **fields: int) -> contextlib.AbstractContextManager[None]:
        """Have the timeline, where there is one, note what is done beside the training."""
        return contextlib.nullcontext() if self.job.timeline is None else self.job.timeline.work(kind, **fields)

    def _on_epoch(self, ready: EpochReady) -> None:
        self._progress = self._make_progress()
        payload = ready.payload if self.job.keeps_epoch(ready.metrics.epoch) else None
        if payload is not None:
            assert isinstance(payload, ReplicaState)
            if not self.job.is_sync and not self.job.meets:
                payload = payload.clone()  # the averager's own buffers: written again in the next round
            self._last_state = payload
        version = ready.metrics.epoch + 1 if self.job.is_single else self.coordinator.num_syncs
        self._callbacks.submit(lambda: self._call_back(ready.metrics, payload, version))

    # In the averaging thread

    def _run_average(self, command: ComputeAverage) -> None:
        with self._timed("average", round=command.round):
            self._average(command)

    def _average(self, command: ComputeAverage) -> None:
        self._averaging_round = command.round
        start_s, start_cpu_s = time.perf_counter(), time.thread_time()
        states = {rank: _state(snapshot.payload) for rank, snapshot in command.snapshots.items()}
        payload, drift = self._agree(command, states)
        self._inbox.send(
            Averaged(
                round=command.round,
                cost_ms=1e3 * (time.perf_counter() - start_s),
                wait_ms={},
                weights=command.tally.num_samples,
                excluded=command.tally.excluded,
                discarded_samples=command.tally.discarded_samples,
                divergence=drift.divergence,
                cosine=drift.cosine,
                magnitude=drift.magnitude,
                taken_ms=self._taken_ms(time.thread_time() - start_cpu_s),
                epochs=command.tally.epochs,
                global_step=command.tally.global_step,
                payload=payload,
            )
        )

    def _taken_ms(self, cpu_s: float) -> float:
        """Milliseconds that each worker lost; those on the CPU keep all its cores busy between them."""
        num_sharing = sum(device.type == "cpu" for device in self.job.devices)
        return 1e3 * cpu_s / num_sharing if num_sharing > 0 else 0.0

    def _agree(self, command: ComputeAverage, states: dict[int, ReplicaState]) -> tuple[ReplicaState, Drift]:
        if self.job.is_sync or command.round == FINAL_ROUND:
            # the run was stopped within a round, and no later one would correct an outer step that goes too far: what
            # is returned is what was trained
            return self._averager.average(states, command.tally), Drift()
        return self._averager.consensus(states, command.tally)

    def _on_averaging_error(self, error: BaseException) -> None:
        log.error("averaging failed", exc_info=error)
        with contextlib.suppress(ChannelClosed):
            self._inbox.send(AveragingFailed(round=self._averaging_round, error=error))

    # In the callbacks' thread

    def _call_back(self, metrics: EpochMetrics, payload: ReplicaState | None, version: int) -> None:
        if payload is not None and (self.job.eval_fn is not None or self.job.saves_epoch(metrics.epoch)):
            self._replica.load(payload)
        # a run that was told to stop does not work off the evaluations that wait
        if self.job.eval_fn is not None and payload is not None and not self._stop_requested.is_set():
            with self._timed("eval", epoch=metrics.epoch):
                result = self.job.eval_fn(self._initial)
            metrics = replace(metrics, eval=figures_of(result))
        if self.job.checkpoint_fn is not None and payload is not None and self.job.saves_epoch(metrics.epoch):
            with self._timed("checkpoint", version=version, epoch=metrics.epoch):
                self.job.checkpoint_fn(version, self._initial)
        if self.job.metrics_fn is not None:
            self.job.metrics_fn(metrics)
        self.metrics.put(metrics)

    def _on_callback_error(self, error: BaseException) -> None:
        log.error("a callback failed", exc_info=error)
        self._callback_error = self._callback_error or error
        with contextlib.suppress(ChannelClosed):  # the last callback of a run that has ended otherwise
            self._inbox.send(CallbackFailed(error=error))

    # The end

    def _abandon(self) -> None:
        """Let the workers end without a coordinator."""
        self._gradients.request_stop()
        for inbox in self._inboxes:
            with contextlib.suppress(ChannelClosed):
                inbox.send(Shutdown(hand_in=False))
                inbox.close()
        if self._rendezvous is not None:
            self._rendezvous.close()

    def _wind_up(self) -> None:
        self.job.first_forward.give_up()
        limit_s = time.perf_counter() + JOIN_S
        for rank, thread in enumerate(self._workers):
            thread.join(0.0 if rank in self._given_up else max(0.0, limit_s - time.perf_counter()))
            if thread.is_alive():
                log.error("rank %d does not end: its thread is left behind", rank)
        self._inbox.close()
        self._averaging.close()
        self._close_callbacks()
        if self._rendezvous is not None:
            self._rendezvous.close()
        self._progress = self._make_progress()
        self._conclude()
        torch.set_num_threads(self._outer_threads)  # what threads that are yet to be made will use
        if self.job.timeline is not None:
            self.job.timeline.stop()
        self.metrics.close()
        self.events.close()
        self.done.set()

    def _close_callbacks(self) -> None:
        """Wait for the user's callbacks; for as long as they take, unless the run was told to stop."""
        stopped_s: float | None = None
        while not self._callbacks.close(IDLE_S):
            if not threading.main_thread().is_alive():
                self.request_stop()
            if not self._stop_requested.is_set():
                continue
            now_s = time.perf_counter()
            stopped_s = now_s if stopped_s is None else stopped_s
            if now_s - stopped_s >= CALLBACK_S:
                log.error("a callback does not return: its thread is left behind")
                self._callback_error = self._callback_error or FlodlError(
                    f"eval_fn or metrics_fn has not returned {CALLBACK_S:g} s after the run was stopped"
                )
                return

    def _conclude(self) -> None:
        """Settle how the run ended, after everything that may still have failed."""
        assert self.finish is not None, "winding up follows a finish"
        if self._callback_error is not None:
            self._fail(self._callback_error)
        try:
            self._publish()
        except Exception as error:  # a thread's top: eval_fn may have left the model in any state
            log.exception("the trained state cannot be read")
            self._fail(error)
        ended = self._ended or RunEnded(
            time_s=self.coordinator.book.time_s(time.perf_counter()),
            status="failed",
            global_step=self.coordinator.book.global_step,
        )
        self._tell(replace(ended, status=self.finish.status))

    def _fail(self, error: BaseException) -> None:
        assert self.finish is not None, "winding up follows a finish"
        self.finish = replace(self.finish, status="failed", error=self.finish.error or error)

    def _publish(self) -> None:
        assert self.finish is not None, "winding up follows a finish"
        final = self.finish.payload if self.finish.payload is not None else self._last_state
        if self.finish.payload is None and self.coordinator.is_stopping:
            return  # the last epoch's average is not what the run ended with
        if final is None or (self.finish.status == "failed" and self.coordinator.book.global_step == 0):
            return  # nothing was trained: there is but the initial model
        self._replica.load(_state(final))
        self.state = TrainedState.of(self._initial)

    def _make_progress(self) -> Progress:
        coordinator = self.coordinator
        speeds = coordinator.book.rank_speeds()
        return Progress(
            epoch=coordinator.current_epoch,
            epoch_samples=coordinator.epoch_samples_done,
            epoch_size=self.job.epoch_size,
            num_epochs=self.job.num_epochs,
            totals=coordinator.book.totals(),
            rank_speeds=tuple(speeds.get(rank, 0.0) for rank in range(self.job.world_size)),
            num_syncs=coordinator.num_syncs,
            anchor=coordinator.anchor,
            loss=coordinator.book.recent_loss,
        )


def _state(payload: object) -> ReplicaState:
    assert isinstance(payload, ReplicaState)
    return payload
