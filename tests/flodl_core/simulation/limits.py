"""Limits that a run was given, and whether it kept to them."""

from flodl_core.events import AnchorChanged, GuardChanged, SyncEvent, Throttled
from tests.flodl_core.simulation.recording import Recording

RISING = 3


def check_overshoot(run: Recording) -> None:
    """While an epoch is not whole, no rank trains more of the next one than the overshoot's limit."""
    if run.simulation.is_sync:
        return  # all train the same rounds
    spec = run.spec
    most = spec.options.max_overshoot
    if most is None:
        num_batches = -(-spec.epoch_size // spec.batch_size)
        most = min(max(num_batches // 50, 3), 10)
    if not spec.options.progressive_dispatch:
        most = 0
    for epoch, num_samples in run.ahead.items():
        assert num_samples <= most * spec.batch_size, f"{num_samples} samples ahead of epoch {epoch}"


def check_throttled(run: Recording) -> None:
    """A rank is throttled for being too far ahead, once a round."""
    throttled = [event for event in run.events if isinstance(event, Throttled)]
    limit = run.spec.options.max_batch_diff
    if limit is None or run.simulation.is_sync:
        assert not throttled, "nobody is throttled where nothing limits"
        return
    assert all(event.num_batches_ahead > limit for event in throttled)
    assert len({(event.rank, event.round) for event in throttled}) == len(throttled), "throttled twice in a round"


def check_guard(run: Recording) -> None:
    """The guard holds exactly while drift has risen above its threshold, and the anchor stays where it is then."""
    threshold = run.spec.options.divergence_threshold
    drifts: list[float] = []
    is_holding = False
    for event in run.events:
        match event:
            case GuardChanged():
                assert event.is_holding != is_holding, "the guard told of no change"
                is_holding = event.is_holding
            case SyncEvent() if not run.simulation.is_sync:
                drifts.append(max([0.0, *event.divergence.values()]))
                assert is_holding == _is_rising(drifts[-RISING:], threshold), f"the guard judged {drifts[-RISING:]}"
            case AnchorChanged():
                assert not is_holding, "the anchor moved while the guard held it"


def _is_rising(last: list[float], threshold: float | None) -> bool:
    is_known = threshold is not None and len(last) == RISING and last[-1] > threshold
    return is_known and last[0] < last[1] < last[2]


def check_max_steps(run: Recording) -> None:
    """Exact where ranks train on their own; sync ends with the first round that reaches it."""
    most = run.spec.max_steps
    if most is None:
        return
    was_cut = run.spec.cancel_at_s is not None or run.spec.max_time_s is not None or bool(run.spec.deaths)
    is_whole = len(run.simulation.epochs) == run.spec.num_epochs
    assert run.num_batches >= most or is_whole or was_cut, f"the run ended at step {run.num_batches} of {most}"
    if not run.simulation.is_sync:
        assert run.num_batches <= most, f"{run.num_batches} steps, and {most} were allowed"
    elif run.batches:
        round_size = run.spec.batch_size * run.spec.world_size
        rounds = [(batch.epoch, batch.offset // round_size) for batch in run.batches]
        before = sum(each < max(rounds) for each in rounds)
        assert before < most, f"a round began though {before} of {most} steps had been taken"
