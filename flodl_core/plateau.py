"""A learning rate that drops when a measured value no longer does."""

import threading

from flodl_core.arguments import real_number, whole_number
from flodl_core.errors import ConfigError


class PlateauScheduler:
    """Multiplies the factor of the learning rate by ``factor`` after ``patience`` values without a new minimum.

    A value is better where it is lower than the lowest so far, by however little; NaN never is. There is no pause after
    a drop. PyTorch's ReduceLROnPlateau of the same patience drops one value later, and asks for an improvement of
    0.01 % by default.

    Values are measured beside the training, so that workers would see a drop at different moments; under the policy
    sync, where all replicas are one, that would tear them apart. ``at_epoch`` gives all workers the same factor for an
    epoch:

        plateau = PlateauScheduler(patience=2, factor=0.5)

        def begin_epoch(epoch, worker):
            factor = plateau.at_epoch(epoch)
            worker.set_scheduler(lambda position: factor)

        builder.eval_fn(evaluate)
        builder.metrics_fn(lambda metrics: plateau.observe(metrics.eval["loss"]))
        builder.epoch_fn(begin_epoch)

    Its methods may be called from any thread.

    Args:
        patience: Values in a row without a new minimum before a drop; 0 is as 1.
        factor: Factor of each drop, above 0 and below 1.
        minimum: The factor of the learning rate never falls below this; at most ``base``.
        base: Factor before the first drop.

    Raises:
        ConfigError: An argument is out of its range.
    """

    def __init__(self, *, patience: int = 10, factor: float = 0.1, minimum: float = 0.0, base: float = 1.0) -> None:
        self._patience = whole_number("patience", patience, least=0)
        self._factor = real_number("factor", factor, above=0.0)
        if self._factor >= 1:
            raise ConfigError(f"factor must be below 1, not {factor!r}: the learning rate would not drop")
        self._lr = real_number("base", base, least=0.0)
        self._minimum = real_number("minimum", minimum, least=0.0, most=self._lr)
        self._best = float("inf")
        self._num_waited = 0
        self._by_epoch: dict[int, float] = {}
        self._lock = threading.Lock()

    @property
    def lr(self) -> float:
        """The factor as it stands."""
        return self._lr

    def observe(self, metric: float) -> float:
        """Take in a value, the lower the better; returns the factor after it."""
        with self._lock:
            if metric < self._best:
                self._best, self._num_waited = metric, 0
            else:
                self._num_waited += 1
                if self._num_waited >= self._patience:
                    self._lr, self._num_waited = max(self._lr * self._factor, self._minimum), 0
            return self._lr

    def at_epoch(self, epoch: int) -> float:
        """The factor of an epoch: as it stood when the first worker asked, and the same for all that ask after."""
        with self._lock:
            return self._by_epoch.setdefault(epoch, self._lr)
