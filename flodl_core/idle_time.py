"""What keeps a worker from training, measured where it happens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleMs:
    """Milliseconds in which a rank did not train, by cause. What an engine does between batches is in none of them.

    Attributes:
        sync: Taking part in averages: the averaging itself, snapshots and merges. In sync through the CPU the wait
            for the others is in it, since a worker there cannot tell the two apart.
        wait: With data at hand: waiting for others at a meeting, or for the average after being throttled.
        load: Waiting for a batch that a slow dataset had not ready yet.
        no_data: Waiting with nothing to train on, at a meeting too.
    """

    sync: float = 0.0
    wait: float = 0.0
    load: float = 0.0
    no_data: float = 0.0

    def __add__(self, other: "IdleMs") -> "IdleMs":
        return IdleMs(
            sync=self.sync + other.sync,
            wait=self.wait + other.wait,
            load=self.load + other.load,
            no_data=self.no_data + other.no_data,
        )


NOT_IDLE = IdleMs()


class IdleClock:
    """Adds up what one worker measures between two reports. Owner: the worker's thread."""

    __slots__ = ("load_ms", "no_data_ms", "sync_ms", "wait_ms")

    def __init__(self) -> None:
        self.sync_ms = self.wait_ms = self.load_ms = self.no_data_ms = 0.0

    def waited(self, ms: float, *, has_data: bool) -> None:
        """Book a wait for others: with or without something to train on."""
        if has_data:
            self.wait_ms += ms
        else:
            self.no_data_ms += ms

    def take(self) -> IdleMs:
        """Everything since the last time."""
        idle = IdleMs(sync=self.sync_ms, wait=self.wait_ms, load=self.load_ms, no_data=self.no_data_ms)
        self.sync_ms = self.wait_ms = self.load_ms = self.no_data_ms = 0.0
        return idle
