"""What a worker has trained since it last said so: the source of its reports and of its entries into averages."""

from collections.abc import Iterable

from flodl_core.idle_time import NOT_IDLE, IdleMs
from flodl_core.messages import BatchesDone, Entry, Scalars


class WorkerLedger:
    """Owned by one worker.

    Args:
        rank: Whose it is.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.total_batches = 0
        self.batches_since_entry = 0
        self._samples_since_entry = 0
        self._unanswered: Entry | None = None
        self._completed: dict[int, int] = {}
        self._clear()

    def _clear(self) -> None:
        self.num_unreported = 0
        self._samples = 0
        self._busy_ms = 0.0
        self._full_batches = 0
        self._full_ms = 0.0

    def must_report_before(self, *, round_: int, epoch: int) -> bool:
        """Whether a batch of this round and epoch may not share a report with those before."""
        return self.num_unreported > 0 and (self._round != round_ or self._epoch != epoch)

    def record(
        self, *, round_: int, epoch: int, num_samples: int, is_full: bool, busy_ms: float, start_s: float, end_s: float
    ) -> None:
        """Enter a batch; the arguments are the fields of ``BatchesDone``."""
        if self.num_unreported == 0:
            self._round, self._epoch, self._start_s = round_, epoch, start_s
        self._end_s = end_s
        self.num_unreported += 1
        self._samples += num_samples
        self._busy_ms += busy_ms
        if is_full and self.total_batches > 0:  # the first batch warms up caches and allocators: it tells no speed
            self._full_batches += 1
            self._full_ms += busy_ms
        self.total_batches += 1
        self.batches_since_entry += 1
        self._samples_since_entry += num_samples
        self._completed[epoch] = self._completed.get(epoch, 0) + num_samples

    def report(
        self,
        *,
        loss_sum: float,
        scalars: Scalars,
        lr: float,
        num_syncs: int = 0,
        sync_ms: float = 0.0,
        discarded_samples: int = 0,
        idle: IdleMs = NOT_IDLE,
    ) -> BatchesDone:
        """Everything since the last report; there must be something."""
        assert self.num_unreported > 0, "nothing to report"
        message = BatchesDone(
            rank=self._rank,
            round=self._round,
            epoch=self._epoch,
            num_batches=self.num_unreported,
            num_samples=self._samples,
            busy_ms=self._busy_ms,
            num_full_batches=self._full_batches,
            full_busy_ms=self._full_ms,
            loss_sum=loss_sum,
            scalars=scalars,
            lr=lr,
            start_s=self._start_s,
            end_s=self._end_s,
            num_syncs=num_syncs,
            sync_ms=sync_ms,
            discarded_samples=discarded_samples,
            idle=idle,
        )
        self._clear()
        return message

    def entry(self, *, round_: int, is_finite: bool = True) -> Entry:
        """What to enter an average with; what comes after counts for the next.

        An entry that is unanswered by now came too late for its average, since answers come in order: what it held is
        in the replica still, and so in this entry.
        """
        if self._unanswered is not None:
            self.take_back(self._unanswered)
        entry = Entry(
            rank=self._rank,
            round=round_,
            num_samples=self._samples_since_entry,
            total_batches=self.total_batches,
            completed=dict(self._completed),
            is_finite=is_finite,
        )
        self._samples_since_entry = 0
        self.batches_since_entry = 0
        self._unanswered = entry
        return entry

    def gradient_entry(self, *, round_: int, num_samples: int, is_finite: bool) -> Entry:
        """What to enter an average of gradients with: the batch under way, which is not recorded yet."""
        return Entry(
            rank=self._rank,
            round=round_,
            num_samples=num_samples,
            total_batches=self.total_batches + (num_samples > 0),
            completed={},
            is_finite=is_finite,
        )

    def take_back(self, entry: Entry) -> None:
        """The entry came too late for its average: its samples count for the next, where they do not already."""
        if self._unanswered is entry:
            self._samples_since_entry += entry.num_samples
            self._unanswered = None

    def discard(self) -> int:
        """What was trained since the last entry is lost; returns its samples."""
        discarded, self._samples_since_entry = self._samples_since_entry, 0
        self.batches_since_entry = 0
        return discarded

    def averaged(self, epochs: Iterable[int]) -> None:
        """The last entry is in an average, in which these epochs are whole: they need no more keeping."""
        self._unanswered = None
        for epoch in epochs:
            self._completed.pop(epoch, None)
