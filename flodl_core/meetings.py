"""What the last worker to arrive at the rendezvous does for all: the all-reduce among threads of one process."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flodl_core.averaging import Averager
from flodl_core.errors import NonFiniteError
from flodl_core.messages import Averaged, Entry
from flodl_core.outer import OuterOptimizer
from flodl_core.replica import ReplicaState
from flodl_core.tally import Tally, tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What a rank brings to a meeting; the tensors are written to before it is released."""

    entry: Entry
    state: ReplicaState


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingResult:
    """What all ranks take home.

    Attributes:
        global_step: Batches trained by all ranks.
        epochs: Epochs that the average completes.
        excluded: Ranks that were left out.
        cost_ms: What averaging took, without waiting.
        leader: The rank that speaks for all; see ``Tally``.
        stop: Sync: end after this round's step.
        has_grad: Sync: which parameters have a gradient on any rank.
    """

    global_step: int
    epochs: tuple[int, ...]
    excluded: tuple[int, ...]
    cost_ms: float
    leader: int
    stop: bool = False
    has_grad: tuple[bool, ...] = ()


def _settle(contributions: Mapping[int, Contribution], epochs: range, epoch_size: int) -> Tally:
    entries = [contribution.entry for contribution in contributions.values()]
    assert len({entry.round for entry in entries}) == 1, "ranks of one meeting share a round"
    terms = tally(entries, epochs=epochs, epoch_size=epoch_size)
    if terms is None:
        raise NonFiniteError("the training has diverged: no replica is finite")
    return terms


class ParameterMeeting:
    """Cadence and async: averages parameters in place. Runs with all ranks stopped.

    Args:
        epoch_size: Samples in an epoch.
        num_epochs: Epochs in the run.
        keeps_epoch: Whether the average that completes an epoch has to be kept.
        post: Hands ``Averaged`` to the coordinator, before anybody is released.
        outer: What becomes of the mean before the ranks take it, or None for nothing.
    """

    def __init__(
        self,
        *,
        epoch_size: int,
        num_epochs: int,
        keeps_epoch: Callable[[int], bool],
        post: Callable[[Averaged], None],
        outer: OuterOptimizer | None = None,
    ) -> None:
        self._epoch_size = epoch_size
        self._num_epochs = num_epochs
        self._keeps_epoch = keeps_epoch
        self._post = post
        self._averager = Averager(outer)
        self._next_epoch = 0

    def __call__(self, contributions: Mapping[int, Contribution], waited_s: Mapping[int, float]) -> MeetingResult:
        """Average, tell the coordinator, and give every rank the consensus."""
        start_s = time.perf_counter()
        # an average can complete the epoch under way and, where epochs are tiny, what was streamed of the next
        candidates = range(self._next_epoch, min(self._next_epoch + 2, self._num_epochs))
        terms = _settle(contributions, candidates, self._epoch_size)
        self._next_epoch += len(terms.epochs)
        states = {rank: contribution.state for rank, contribution in contributions.items()}
        drift = self._averager.consensus_in_place(states, terms)
        keep = any(self._keeps_epoch(epoch) for epoch in terms.epochs)
        cost_ms = 1e3 * (time.perf_counter() - start_s)
        self._post(
            Averaged(
                round=next(iter(contributions.values())).entry.round,
                cost_ms=cost_ms,
                wait_ms={rank: 1e3 * waited for rank, waited in waited_s.items()},
                weights=terms.num_samples,
                excluded=terms.excluded,
                discarded_samples=terms.discarded_samples,
                divergence=drift.divergence,
                cosine=drift.cosine,
                magnitude=drift.magnitude,
                epochs=terms.epochs,
                global_step=terms.global_step,
                payload=states[min(states)].clone() if keep else None,
            )
        )
        return MeetingResult(
            global_step=terms.global_step,
            epochs=terms.epochs,
            excluded=terms.excluded,
            cost_ms=cost_ms,
            leader=terms.leader,
        )


class GradientMeeting:
    """Sync: averages gradients in place. Runs with all ranks stopped, but for ``request_stop``.

    Args:
        world_size: Ranks at the start.
    """

    def __init__(self, *, world_size: int) -> None:
        self._world_size = world_size
        self._averager = Averager()
        self._stop = False

    def request_stop(self) -> None:
        """Let the next meeting tell all ranks to end. From any thread."""
        self._stop = True

    def __call__(self, contributions: Mapping[int, Contribution], waited_s: Mapping[int, float]) -> MeetingResult:
        """Average and give every rank the mean gradient."""
        start_s = time.perf_counter()
        # read once: all ranks must act on the same value. A rank that is missing has failed: the others need not wait
        # for the coordinator to say so, and would train a good many rounds without its samples until it does
        stop = self._stop or len(contributions) < self._world_size
        terms = _settle(contributions, range(0), 1)
        states = {rank: contribution.state for rank, contribution in contributions.items()}
        has_grad = self._averager.average_in_place(states, terms)
        return MeetingResult(
            global_step=terms.global_step,
            epochs=(),
            excluded=terms.excluded,
            cost_ms=1e3 * (time.perf_counter() - start_s),
            leader=terms.leader,
            stop=stop,
            has_grad=has_grad,
        )
