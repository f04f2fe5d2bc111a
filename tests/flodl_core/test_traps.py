"""Ways in which a run might come to a standstill, each forced to come about: the run must end, and hold its laws.

Here are those of data and rounds; those of deaths are in ``test_traps_deaths.py``, those of stops in
``test_traps_stops.py``, that of two exchanges at once in ``test_traps_exchanges.py``. For the state machines alone,
message by message:

- a chunk that ends while an average starts: ``test_local_coordinator.py``,
  ``test_rank_that_finishes_its_chunk_while_an_average_is_under_way_gets_the_next``
- a throttled rank and an idle slow one: ``test_local_coordinator.py``,
  ``test_throttled_rank_is_not_left_waiting_for_a_slow_rank_that_runs_dry``
- a death between request and snapshot: ``test_local_endings.py``,
  ``test_death_between_request_and_snapshot_does_not_hold_up_the_others``
- a death inside the rendezvous: ``test_rendezvous.py``,
  ``test_rank_that_leaves_completes_the_meeting_of_those_that_wait``
- a shutdown while an average is computed: ``test_local_endings.py``,
  ``test_stop_while_computing_finishes_the_average_first``
- an epoch's pool after its average: ``test_dealer.py``, ``test_epochs_averaged_out_of_order_are_a_fault_of_ours``
- an average and the next request in one drain: ``test_worker_logic.py``,
  ``test_update_and_the_next_request_that_arrive_together_are_taken_in_order``
- a stop that finds two sync ranks in different rounds: ``test_sync_logic.py``, ``test_all_ranks_end_in_the_same_round``
- a rank without data while the others wait: ``test_local_meetings.py``,
  ``test_rank_without_data_is_sent_to_the_meeting_where_the_others_will_wait``
"""

import itertools
import re
from pathlib import Path

import pytest
from torch import Tensor, nn

from flodl_core import AverageBackend
from flodl_core.chunk_pool import ChunkPool
from flodl_core.dealer import Dealer
from flodl_core.errors import SimulationError
from flodl_core.events import Throttled
from flodl_core.local_coordinator import LocalCoordinator
from flodl_core.local_options import LocalOptions
from flodl_core.messages import EpochPlan, RequestParams, StartEpoch, Update
from flodl_core.policies import ApplyPolicy
from flodl_core.rounds import Window
from flodl_core.simulation import SimulationSpec, Stall
from flodl_core.simulation.worker import Activity, VirtualWorker
from flodl_core.worker_logic import WorkerLogic
from tests.flodl_core.forced import Hold, others_wait, run_forced
from tests.flodl_core.simulation.laws import check_completed
from tests.flodl_core.test_hangs import WatchedPulse, pulses, rank_of_thread  # noqa: F401  # a fixture
from tests.flodl_core.training import LIMIT_S, Samples, TrainLog, configure, every_way, numbered_samples, train

every_simulated_way = pytest.mark.parametrize(
    ("policy", "meets"),
    [
        pytest.param(policy, meets, id=f"{policy}-{'meets' if meets else 'cpu'}")
        for policy, meets in itertools.product(ApplyPolicy, (True, False))
    ],
)
every_simulated_local_way = pytest.mark.parametrize(
    ("policy", "meets"),
    [
        pytest.param(policy, meets, id=f"{policy}-{'meets' if meets else 'cpu'}")
        for policy, meets in itertools.product((ApplyPolicy.CADENCE, ApplyPolicy.ASYNC), (True, False))
    ],
)


def unlike(
    policy: ApplyPolicy,
    meets: bool,
    *,
    batch_ms: tuple[float, ...] = (10.0, 14.0, 25.0),
    num_batches: int = 60,
    num_epochs: int = 3,
    anchor: int = 2,
    max_batch_diff: int | None = None,
    max_overshoot: int | None = None,
    stalls: tuple[Stall, ...] = (),
) -> SimulationSpec:
    """Epochs of ``num_batches`` batches and a smaller last one, over ranks that are unlike."""
    return SimulationSpec(
        batch_ms=batch_ms,
        epoch_size=8 * num_batches + 3,
        batch_size=8,
        num_epochs=num_epochs,
        options=LocalOptions(
            policy=policy, meets=meets, anchor=anchor, max_batch_diff=max_batch_diff, max_overshoot=max_overshoot
        ),
        stalls=stalls,
    )


def has_no_data(worker: VirtualWorker) -> bool:
    return worker.activity in (Activity.NO_DATA, Activity.ENDED)


# A rank finishes its chunk while an average starts


@pytest.mark.parametrize("policy", [ApplyPolicy.CADENCE, ApplyPolicy.ASYNC])
@pytest.mark.parametrize("rank", [0, 2], ids=["fastest", "slowest"])
def test_chunk_ends_while_an_average_starts(policy: ApplyPolicy, rank: int) -> None:
    # the request finds the rank with nothing left: it has asked for more while the others hand in
    late = Hold(rank=rank, kind=RequestParams, until=lambda run: has_no_data(run.workers[rank]))
    check_completed(run_forced(unlike(policy, meets=False), late))


@every_simulated_way
@pytest.mark.parametrize("rank", [0, 2], ids=["fastest", "slowest"])
def test_chunk_ends_and_the_next_comes_when_all_others_stand_at_the_average(
    policy: ApplyPolicy, meets: bool, rank: int
) -> None:
    late = Hold(
        rank=rank,
        kind=StartEpoch,
        until=lambda run: run.workers[rank].activity is not Activity.TRAIN and others_wait(run, rank),
    )
    check_completed(run_forced(unlike(policy, meets), late))


# A throttled rank, and a slow one that has nothing to do


@every_simulated_local_way
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_throttled_rank_and_idle_slow_rank(policy: ApplyPolicy, meets: bool, limit: int) -> None:
    # rank 1 finds its samples only when rank 0 may not go on without it
    late = Hold(rank=1, kind=StartEpoch, until=lambda run: others_wait(run, 1))
    spec = unlike(policy, meets, batch_ms=(10.0, 40.0), anchor=4, max_batch_diff=limit, max_overshoot=0)
    run = run_forced(spec, late)
    check_completed(run)
    assert [event for event in run.events if isinstance(event, Throttled)], "nobody was throttled"


@every_simulated_local_way
@pytest.mark.parametrize("num_batches", range(2, 8))
def test_throttled_rank_and_slow_rank_that_runs_dry(policy: ApplyPolicy, meets: bool, num_batches: int) -> None:
    spec = unlike(policy, meets, batch_ms=(1.0, 40.0, 40.0), num_batches=num_batches, max_batch_diff=0, max_overshoot=0)
    run = run_forced(spec)
    check_completed(run)
    assert [event for event in run.events if isinstance(event, Throttled)], "nobody was throttled"


@pytest.mark.parametrize("policy", [ApplyPolicy.CADENCE, ApplyPolicy.ASYNC])
def test_throttled_rank_that_does_not_go_to_the_meeting_is_noticed(
    monkeypatch: pytest.MonkeyPatch, policy: ApplyPolicy
) -> None:
    must_end = WorkerLogic._must_end

    def only_waits(logic: WorkerLogic, window: Window) -> bool:
        return logic._throttled < window.round and must_end(logic, window)

    monkeypatch.setattr(WorkerLogic, "_must_end", only_waits)
    with pytest.raises(SimulationError, match="stuck"):
        run_forced(unlike(policy, meets=True, batch_ms=(10.0, 40.0), anchor=4, max_batch_diff=1, max_overshoot=0))


# ``max_batch_diff`` below the spread of the counts


@pytest.mark.parametrize("meets", [True, False], ids=["meets", "cpu"])
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_limit_below_the_spread_of_the_counts_under_async(
    monkeypatch: pytest.MonkeyPatch, meets: bool, limit: int
) -> None:
    # counts are planned within the limit: here they are not, and the fast rank can never do its own
    make = LocalCoordinator.__init__

    def unplanned(coordinator: LocalCoordinator, *args: object, **kwargs: object) -> None:
        make(coordinator, *args, **kwargs)  # type: ignore[arg-type]  # passed on
        coordinator._pace._max_batch_diff = None

    monkeypatch.setattr(LocalCoordinator, "__init__", unplanned)
    run = run_forced(
        unlike(ApplyPolicy.ASYNC, meets, batch_ms=(5.0, 50.0), anchor=4, num_batches=200, max_batch_diff=limit)
    )
    check_completed(run)
    throttled = {event.round for event in run.events if isinstance(event, Throttled)}
    assert len(throttled) > 3, "the limit was never reached"


@every_simulated_local_way
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_limit_that_a_stall_makes_too_small(policy: ApplyPolicy, meets: bool, limit: int) -> None:
    stalls = tuple(Stall(rank=1, batch=batch, ms=300.0) for batch in (0, 5, 6, 11))
    run = run_forced(unlike(policy, meets, batch_ms=(10.0, 12.0), anchor=6, max_batch_diff=limit, stalls=stalls))
    check_completed(run)
    assert [event for event in run.events if isinstance(event, Throttled)], "nobody was throttled"


# An epoch's pool that comes back after its average


@every_simulated_local_way
@pytest.mark.parametrize("num_batches", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("max_overshoot", [0, None])
def test_pool_of_an_averaged_epoch_does_not_come_back(
    policy: ApplyPolicy, meets: bool, num_batches: int, max_overshoot: int | None
) -> None:
    # ranks without data ask again with every average that ends an epoch
    spec = unlike(policy, meets, num_batches=num_batches, num_epochs=5, max_overshoot=max_overshoot)
    check_completed(run_forced(spec))


@pytest.mark.parametrize("policy", [ApplyPolicy.CADENCE, ApplyPolicy.ASYNC])
@pytest.mark.parametrize("rank", [0, 2], ids=["fastest", "slowest"])
def test_rank_takes_an_epochs_average_when_the_others_have_trained_the_next(policy: ApplyPolicy, rank: int) -> None:
    late = Hold(
        rank=rank,
        kind=Update,
        of=lambda update: len(update.epochs) > 0,
        until=lambda run: has_no_data(run.workers[rank]) and others_wait(run, rank),
    )
    check_completed(run_forced(unlike(policy, meets=False, num_batches=12), late))


@every_simulated_local_way
def test_pool_that_comes_back_is_noticed(monkeypatch: pytest.MonkeyPatch, policy: ApplyPolicy, meets: bool) -> None:
    next_plan = Dealer._next_plan

    def from_the_last_epoch_too(dealer: Dealer, rank: int, worth: int) -> EpochPlan | None:
        pool = dealer._pool(dealer.averaged_epoch) if dealer.averaged_epoch >= 0 else None
        if isinstance(pool, ChunkPool) and pool.remaining > 0:
            return dealer._take(pool, rank, dealer.averaged_epoch, worth)
        return next_plan(dealer, rank, worth)

    monkeypatch.setattr(Dealer, "_next_plan", from_the_last_epoch_too)
    with pytest.raises((AssertionError, SimulationError)):
        check_completed(run_forced(unlike(policy, meets)))


# A rank without data while the others wait


@every_simulated_way
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_rank_without_data_while_the_others_wait(policy: ApplyPolicy, meets: bool, rank: int) -> None:
    late = Hold(rank=rank, kind=StartEpoch, until=lambda run: others_wait(run, rank))
    check_completed(run_forced(unlike(policy, meets, batch_ms=(10.0, 10.0, 10.0), num_batches=7), late))


@every_simulated_local_way
def test_rank_that_is_not_called_to_the_meeting_is_noticed(
    monkeypatch: pytest.MonkeyPatch, policy: ApplyPolicy, meets: bool
) -> None:
    spec = unlike(policy, meets, batch_ms=(10.0, 10.0, 500.0), num_batches=7, max_overshoot=0)
    check_completed(run_forced(spec))
    if not meets:
        return  # nobody is called
    monkeypatch.setattr(LocalCoordinator, "_note_work_state", lambda coordinator, rank: None)
    monkeypatch.setattr(LocalCoordinator, "_on_epoch_trained", lambda coordinator: coordinator._deal_to_starved())
    with pytest.raises(SimulationError, match="stuck"):
        run_forced(spec)


@every_way
def test_threads_without_data_wait_while_another_trains(
    policy: ApplyPolicy,
    backend: AverageBackend,
    pulses: list[WatchedPulse],  # noqa: F811  # a fixture
) -> None:
    log = TrainLog()

    def train_fn(model: nn.Module, batch: Samples) -> Tensor:
        others = [pulse for rank, pulse in enumerate(pulses) if rank != rank_of_thread()]
        assert all(pulse.rested.wait(LIMIT_S) for pulse in others), "a rank without data does not wait"
        return log.train_fn(model, batch)

    builder = configure(
        numbered_samples(1), policy=policy, backend=backend, devices=["cpu"] * 3, train_fn=train_fn, num_epochs=3
    )
    outcome = train(builder.epoch_fn(log.begin_epoch))
    assert outcome.handle.status == "completed"
    assert log.samples == {(epoch, 0): 1 for epoch in range(3)}
    assert log.begun == {rank: [0, 1, 2] for rank in range(3)}


# The index above


def test_index_names_tests_that_exist() -> None:
    folder = Path(__file__).parent
    entries = re.findall(r"``(test_\w+\.py)``,\s+``(test_\w+)``", __doc__ or "")
    assert len(entries) == 9
    for file, name in entries:
        assert f"def {name}(" in (folder / file).read_text(), f"{file} has no {name}"
