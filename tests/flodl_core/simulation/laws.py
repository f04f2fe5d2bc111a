"""The laws that a simulated run is held to. Each check raises ``AssertionError`` where its law is broken."""

from flodl_core.events import EpochEnded, SyncEvent, WorkerLost
from tests.flodl_core.simulation.figures import check_events, check_metrics, check_times
from tests.flodl_core.simulation.limits import check_guard, check_max_steps, check_overshoot, check_throttled
from tests.flodl_core.simulation.recording import Recording

ROUNDING = 1e-9


def check_run(run: Recording) -> None:
    """Whatever became of the run: it is held to all that has to hold then."""
    if run.status == "completed" and not run.has_result:
        check_completed(run)
    else:
        check_stopped(run)


def check_completed(run: Recording) -> None:
    """A run that came to the end of its last epoch; a worker that dies after that takes nothing with it."""
    assert run.status == "completed"
    check_always(run)
    check_every_sample_once(run)
    check_epochs(run)
    check_averages_hold_everything(run)
    after = run.events[max(i for i, event in enumerate(run.events) if isinstance(event, EpochEnded)) :]
    assert len(run.lost) == sum(isinstance(event, WorkerLost) for event in after), "a run that lost a worker failed"
    spec = run.spec
    assert run.simulation.coordinator.book.totals().num_samples == spec.epoch_size * spec.num_epochs
    assert [metrics.num_samples for metrics in run.simulation.epochs] == [spec.epoch_size] * spec.num_epochs


def check_stopped(run: Recording) -> None:
    """A run that was cancelled, reached a limit, or lost workers: what was trained is in its result."""
    check_always(run)
    check_status(run)
    check_epochs_so_far(run)
    check_result(run)
    check_ends_after_the_batch_under_way(run)


def check_always(run: Recording) -> None:
    """What holds in every run."""
    check_nothing_twice(run)
    check_every_batch_counted(run)
    check_rounds(run)
    check_told_to_end_once(run)
    check_events(run)
    check_metrics(run)
    check_times(run)
    check_overshoot(run)
    check_throttled(run)
    check_guard(run)
    check_max_steps(run)


# Law 1


def check_every_sample_once(run: Recording) -> None:
    """Law 1: each epoch's samples are trained, each once."""
    epochs = run.by_epoch()
    assert sorted(epochs) == list(range(run.spec.num_epochs))
    for epoch, batches in epochs.items():
        position = 0
        for batch in batches:
            assert batch.offset == position, f"epoch {epoch} lacks samples at {position}, or trained some twice"
            position += batch.size
        assert position == run.spec.epoch_size, f"epoch {epoch} has {position} samples"


def check_nothing_twice(run: Recording) -> None:
    """Law 1, for a run that was stopped as well: no sample is trained twice in an epoch."""
    # in sync, ratios share out a round: a rank's part may be more than an even one
    parts = run.spec.world_size if run.simulation.is_sync and run.spec.options.partition_ratios else 1
    for epoch, batches in run.by_epoch().items():
        position = 0
        for batch in batches:
            assert 0 < batch.size <= parts * run.spec.batch_size, f"a batch of {batch.size} samples"
            assert batch.offset >= position, f"epoch {epoch} trained a sample twice at {batch.offset}"
            position = batch.offset + batch.size
        assert position <= run.spec.epoch_size, f"epoch {epoch} has no sample {position}"


# Law 4


def check_every_batch_counted(run: Recording) -> None:
    """Law 4: every batch is counted once, by its rank, and nothing else is; so the global step never goes back."""
    totals = run.simulation.coordinator.book.totals()
    assert totals.num_batches == run.num_batches, "a batch was not counted, or something else was"
    ranks = range(run.spec.world_size)
    trained = [sum(batch.rank == rank for batch in run.batches) for rank in ranks]
    assert list(totals.rank_batches) == trained, "a batch was counted for another rank"
    assert list(totals.rank_samples) == list(run.samples_by_rank().values())
    check_global_steps(run)


def check_global_steps(run: Recording) -> None:
    """The global step that events give never goes back, and ends at the number of batches."""
    # an average's is that of its snapshots, and batches have been counted since
    before: dict[bool, int] = {True: 0, False: 0}
    for event, num_trained in run.placed():
        is_average = isinstance(event, SyncEvent)
        step = getattr(event, "global_step", before[is_average])
        assert before[is_average] <= step <= num_trained, f"{type(event).__name__} says step {step} of {num_trained}"
        before[is_average] = step
    assert before[False] == run.num_batches, "the run ended at another step"


# Law 3


def check_averages_hold_everything(run: Recording) -> None:
    """Law 3: what each rank trained is in exactly one average."""
    if run.simulation.is_sync:
        return
    for rank, num_trained in run.samples_by_rank().items():
        in_averages = sum(event.weights.get(rank, 0) for event in run.syncs)
        assert in_averages == num_trained, f"of rank {rank} {in_averages} of {num_trained} samples are in averages"


def check_result(run: Recording) -> None:
    """Law 3 of a run that was stopped: survivors are averaged, and all that they trained is in it or was before."""
    assert run.has_result == bool(run.survivors), "survivors are averaged"
    assert set(run.survivors) <= run.last_entries.keys(), "a survivor's replica is not in the result"
    samples = run.samples_by_rank()
    for rank in run.survivors:
        averaged = sum(event.weights.get(rank, 0) for event in run.syncs) + run.last_entries[rank]
        assert averaged == samples[rank], f"of rank {rank} {averaged} of {samples[rank]} samples are in an average"


def check_rounds(run: Recording) -> None:
    """Averages are numbered without gaps, and there are never two at once."""
    if run.simulation.is_sync:
        check_rounds_of_sync(run)
        return
    assert [event.round for event in run.syncs] == list(range(len(run.syncs)))
    for rank, rounds in run.requests.items():
        assert rounds == list(range(len(rounds))), f"rank {rank} was asked for rounds {rounds}"
    for round_, num_averages in run.averages_at_request.items():
        assert num_averages == round_, f"round {round_} began to average before the one before it was done"


def check_rounds_of_sync(run: Recording) -> None:
    """All survivors have taken part in the same rounds, and an average follows each."""
    spec = run.spec
    round_size = spec.batch_size * spec.world_size
    rounds = {(batch.epoch, batch.offset // round_size) for batch in run.batches}
    num_syncs = sum(event.num_syncs for event in run.syncs)
    if not run.lost:
        assert num_syncs == (len(rounds) if spec.world_size > 1 else 0), "rounds and averages differ in number"
    if spec.options.partition_ratios is None:
        full = [batch for batch in run.batches if (batch.offset // round_size + 1) * round_size <= spec.epoch_size]
        counts = {rank: sum(batch.rank == rank for batch in full) for rank in run.survivors}
        assert len(set(counts.values())) <= 1, f"survivors ended in different rounds: {counts}"


# Epochs


def check_epochs(run: Recording) -> None:
    """Epochs are reported in order, and each begins once on every rank."""
    check_epochs_so_far(run)
    every_epoch = list(range(run.spec.num_epochs))
    assert [metrics.epoch for metrics in run.simulation.epochs] == every_epoch
    for rank in range(run.spec.world_size):
        if rank not in run.lost:
            assert run.begun[rank] == every_epoch, f"rank {rank} did not begin each epoch once"


def check_epochs_so_far(run: Recording) -> None:
    """Those that are reported are whole and in an average; a rank begins each once, in order, before its batches."""
    ended = [event.epoch for event in run.events if isinstance(event, EpochEnded)]
    assert ended == [metrics.epoch for metrics in run.simulation.epochs] == list(range(len(ended)))
    averaged = -1
    for event, num_trained in run.placed():
        if isinstance(event, SyncEvent) and event.epoch is not None:
            averaged = event.epoch
        elif isinstance(event, EpochEnded):
            in_epoch = sum(batch.size for batch in run.batches[:num_trained] if batch.epoch == event.epoch)
            assert in_epoch == event.num_samples == run.spec.epoch_size, (
                f"epoch {event.epoch} ended before it was whole"
            )
            assert run.simulation.is_sync or event.epoch <= averaged, f"epoch {event.epoch} is in no average"
    for rank in range(run.spec.world_size):
        last = max((batch.epoch for batch in run.batches if batch.rank == rank), default=-1)
        begun = run.begun[rank]
        assert begun == list(range(len(begun))), f"rank {rank} began epochs {begun}"
        assert last < len(begun), f"rank {rank} trained epoch {last} before it began"


# The end


def check_status(run: Recording) -> None:
    """Who lost a worker failed; else the run was cancelled, or came to a limit."""
    spec = run.spec
    assert set(run.lost) <= {death.rank for death in spec.deaths}
    assert len(run.lost) == len(set(run.lost)), "a worker was lost twice"
    if run.lost:
        assert run.status == "failed"
    elif run.status == "cancelled":
        assert spec.cancel_at_s is not None
    else:
        assert run.status == "completed"
        assert spec.max_steps is not None or spec.max_time_s is not None, "the run stopped for no reason"


def check_told_to_end_once(run: Recording) -> None:
    """Each worker that lived was told to end exactly once."""
    for rank in range(run.spec.world_size):
        assert run.num_shutdowns[rank] <= 1, f"rank {rank} was told to end {run.num_shutdowns[rank]} times"
    for rank in run.survivors:
        assert run.num_shutdowns[rank] == 1, f"rank {rank} was not told to end"


def check_ends_after_the_batch_under_way(run: Recording) -> None:
    """A rank begins no batch after it was told to stop; in sync all end with the round that says so."""
    if run.simulation.is_sync:
        return
    for batch in run.batches:
        start_s = batch.end_s - batch.busy_ms / 1e3
        told_s = run.told_to_stop_s.get(batch.rank, start_s)
        assert start_s <= told_s + ROUNDING, f"rank {batch.rank} began a batch after it was told to stop"
