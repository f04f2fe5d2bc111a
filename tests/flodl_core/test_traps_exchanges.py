"""An average and the request for the next one, which reach a worker in one drain of its inbox.

See ``test_traps.py`` for the other ways in which a run might come to a standstill.
"""

from dataclasses import replace

import pytest

from flodl_core import ApplyPolicy, DdpBuilder
from flodl_core.messages import RequestParams, Shutdown, ToWorker, Update
from flodl_core.simulation.worker import Activity
from flodl_core.worker_logic import Action, Wait, WorkerLogic
from tests.flodl_core.forced import Forced, Hold, run_forced
from tests.flodl_core.simulation.laws import check_completed
from tests.flodl_core.test_hangs import rank_of_thread
from tests.flodl_core.test_overlap import check_replay, momentum, run_watched
from tests.flodl_core.test_traps import unlike
from tests.flodl_core.training import LOCAL_POLICIES

each_local_policy = pytest.mark.parametrize("policy", LOCAL_POLICIES)


@each_local_policy
@pytest.mark.parametrize("rank", [0, 1])
def test_average_and_the_next_request_in_one_drain(policy: ApplyPolicy, rank: int) -> None:
    num_pairs = 0

    def is_followed(run: Forced) -> bool:
        nonlocal num_pairs
        behind = list(run.inboxes[rank])[1:]
        is_pair = any(isinstance(message, RequestParams) for message in behind)
        num_pairs += is_pair
        is_end = any(isinstance(message, Shutdown) for message in behind)
        return is_pair or is_end or run.workers[rank].activity is not Activity.TRAIN

    # chunks of such batches last for ten rounds, so the rank can end its window without anything that it has not got
    spec = replace(unlike(policy, meets=False, batch_ms=(1.0, 1.1), num_batches=1000), average_ms=0.1)
    check_completed(run_forced(spec, Hold(rank=rank, kind=Update, until=is_followed)))
    assert num_pairs > 3


class OneDrain:
    """Rank 1 finds each average together with the request for the next, or once it has nothing left to train.

    Args:
        patch: Takes everything back.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.num_pairs = 0
        self._handle = WorkerLogic.handle
        self._next_action = WorkerLogic.next_action
        self._kept: list[ToWorker] = []  # of rank 1's thread alone
        patch.setattr(WorkerLogic, "handle", lambda logic, message: self._keep(logic, message))
        patch.setattr(WorkerLogic, "next_action", lambda logic: self._deliver_when_dry(logic))

    def _keep(self, logic: WorkerLogic, message: ToWorker) -> None:
        if rank_of_thread() != 1 or not (self._kept or isinstance(message, Update)):
            self._handle(logic, message)
            return
        self._kept.append(message)
        self.num_pairs += isinstance(message, RequestParams)
        if isinstance(message, RequestParams | Shutdown):
            self._deliver(logic)

    def _deliver(self, logic: WorkerLogic) -> None:
        kept, self._kept = self._kept, []
        for message in kept:
            self._handle(logic, message)

    def _deliver_when_dry(self, logic: WorkerLogic) -> Action:
        if rank_of_thread() == 1 and self._kept:
            if not logic.has_data:
                self._deliver(logic)
            elif logic._window_ended:
                return Wait()  # the request is on its way: it waits for nothing that is kept here
        return self._next_action(logic)


def check_exchanges(policy: ApplyPolicy) -> None:
    """Snapshot and mean have one buffer each: the replay notices where one is overwritten before it is read."""

    def tune(builder: DdpBuilder) -> None:
        # many short rounds, and data for all of them: a rank that ran dry could wait for nothing that is kept back
        builder.max_anchor(2).partition_ratios([1.0, 1.0, 1.0]).progressive_dispatch(False)

    with pytest.MonkeyPatch.context() as patch:
        drain = OneDrain(patch)
        run = run_watched(policy=policy, optim_factory=momentum, tune=tune)
    assert drain.num_pairs > 0
    check_replay(run)


@each_local_policy
def test_average_and_the_next_request_in_one_drain_leave_nothing_out(policy: ApplyPolicy) -> None:
    check_exchanges(policy)


@each_local_policy
def test_request_that_overtakes_the_average_is_noticed(monkeypatch: pytest.MonkeyPatch, policy: ApplyPolicy) -> None:
    handle = WorkerLogic.handle

    def request_first(logic: WorkerLogic, message: ToWorker) -> None:
        handle(logic, message)
        if isinstance(message, RequestParams):
            logic._exchanges.rotate()

    monkeypatch.setattr(WorkerLogic, "handle", request_first)
    with pytest.raises(AssertionError, match="< 1e-10"):
        check_exchanges(policy)
