"""How long one rank's batches take."""

import random

from flodl_core.simulation.spec import SimulationSpec


class Machine:
    """A rank's device. Its draws are its own: batch n of a rank takes the same, whatever the others do.

    Args:
        spec: The run.
        rank: Whose device.
    """

    def __init__(self, spec: SimulationSpec, rank: int) -> None:
        self._rng = random.Random(f"machine {rank} of {spec.seed}")
        self._sample_ms = spec.batch_ms[rank] / spec.batch_size
        self._jitter = spec.jitter
        # by epoch; of two for the same epoch the later in the spec holds
        slow_downs = sorted((slow for slow in spec.slow_downs if slow.rank == rank), key=lambda slow: slow.epoch)
        self._slow_downs = [(slow.epoch, slow.factor) for slow in slow_downs]
        self._stalls: dict[int, float] = {}
        for stall in spec.stalls:
            if stall.rank == rank:
                self._stalls[stall.batch] = self._stalls.get(stall.batch, 0.0) + stall.ms
        self._num_batches = 0

    def next_batch_ms(self, *, epoch: int, size: int) -> float:
        """Draw what the rank's next batch takes, in milliseconds.

        Args:
            epoch: The batch's epoch.
            size: Its samples.
        """
        ms = self._sample_ms * size * (1.0 + self._jitter * (2.0 * self._rng.random() - 1.0)) / self._speed(epoch)
        stall_ms = self._stalls.get(self._num_batches, 0.0)
        self._num_batches += 1
        return ms + stall_ms

    def _speed(self, epoch: int) -> float:
        speed = 1.0
        for since, factor in self._slow_downs:
            if since <= epoch:
                speed = factor
        return speed
