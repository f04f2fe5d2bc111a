"""The laws that a simulated run is held to. Each check raises ``AssertionError`` where its law is broken."""

from flodl_core.events import EpochEnded, RunEnded, RunStarted
from flodl_core.policies import ApplyPolicy
from tests.flodl_core.simulation.recording import Recording


def check_completed(run: Recording) -> None:
    """A run that came to its planned end."""
    assert run.status == "completed"
    check_every_sample_once(run)
    check_nothing_twice(run)
    check_every_batch_counted(run)
    check_epochs(run)
    check_events(run)
    check_averages_hold_everything(run)


def check_every_sample_once(run: Recording) -> None:
    """Law 1: each epoch's samples are trained, each once."""
    spec = run.spec
    assert sorted(run.trained) == list(range(spec.num_epochs))
    for epoch, counts in run.trained.items():
        assert counts.keys() == set(range(spec.epoch_size)), f"epoch {epoch} lacks samples"
    assert run.simulation.coordinator.book.totals().num_samples == spec.epoch_size * spec.num_epochs
    assert [metrics.num_samples for metrics in run.simulation.epochs] == [spec.epoch_size] * spec.num_epochs


def check_nothing_twice(run: Recording) -> None:
    """Law 1, for a run that was stopped as well: no sample is trained twice in an epoch."""
    for epoch, counts in run.trained.items():
        assert set(counts.values()) == {1}, f"epoch {epoch} trained a sample twice"


def check_every_batch_counted(run: Recording) -> None:
    """Law 4: every batch is counted once, and nothing else is."""
    coordinator = run.simulation.coordinator
    assert coordinator.book.totals().num_batches == run.num_batches, "a batch was not counted, or something else was"
    assert isinstance(run.events[-1], RunEnded)
    assert run.events[-1].global_step == run.num_batches


def check_epochs(run: Recording) -> None:
    """Epochs are reported in order, and each begins once on every rank."""
    every_epoch = list(range(run.spec.num_epochs))
    assert [metrics.epoch for metrics in run.simulation.epochs] == every_epoch
    for rank in range(run.spec.world_size):
        assert run.begun[rank] == every_epoch, f"rank {rank} did not begin each epoch once"


def check_events(run: Recording) -> None:
    """Events come in order of time, from the start to the end."""
    assert isinstance(run.events[0], RunStarted)
    assert isinstance(run.events[-1], RunEnded)
    times = [event.time_s for event in run.events]
    assert times == sorted(times)
    ended = [event.epoch for event in run.events if isinstance(event, EpochEnded)]
    assert ended == list(range(run.spec.num_epochs))


def check_averages_hold_everything(run: Recording) -> None:
    """Law 3: averages are numbered without gaps, and each trained sample is in exactly one of them."""
    if run.simulation.is_sync:
        return
    assert run.spec.options.policy is not ApplyPolicy.SYNC
    assert [event.round for event in run.syncs] == list(range(len(run.syncs)))
    in_averages = sum(sum(event.weights.values()) for event in run.syncs)
    assert in_averages == run.spec.epoch_size * run.spec.num_epochs, "a sample is in no average, or in two"
