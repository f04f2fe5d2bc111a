"""Every error that flodl_core raises on purpose."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flodl_core.trained_state import TrainedState


class FlodlError(Exception):
    """Root of flodl's errors."""


class ConfigError(FlodlError, ValueError):
    """A run was asked for with a value that cannot work; the message says what would."""


class DatasetError(FlodlError, ValueError):
    """A dataset is empty, has parts of unequal length or is of a kind that cannot be read."""


class ModelError(FlodlError, ValueError):
    """A model cannot be replicated: no trainable parameter, a lazy one, or replicas that differ."""


class StateError(FlodlError, ValueError):
    """A state file or a state does not fit the model that it is loaded into."""


class ChannelClosed(FlodlError):
    """A message was sent into a channel whose other side has ended."""


class NonFiniteError(FlodlError, ArithmeticError):
    """Training produced NaN or infinite parameters, and no finite replica was left to go on from."""


class TrainFnError(FlodlError, TypeError):
    """``train_fn`` returned something that cannot be trained on."""


class WorkerTimeoutError(FlodlError, TimeoutError):
    """A worker took longer for a batch than ``worker_timeout_s`` allows."""


class AveragingError(FlodlError):
    """An average failed while it was computed."""


def error_text(error: BaseException) -> str:
    """``ValueError: no such sample``, or the type alone where there is no message.

    Somebody else's error may be unable to say what it is: that must not hide that it came.
    """
    try:
        text = str(error).strip()
    except Exception:  # noqa: BLE001  # whatever its __str__ raises
        text = "(its message cannot be shown)"
    return type(error).__name__ + (f": {text}" if text else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailure:
    """One worker that ended with an exception.

    Attributes:
        rank: The worker's rank.
        error: What it raised, with its traceback.
        traceback: The formatted traceback, for logs and for workers in other processes.
    """

    rank: int
    error: BaseException
    traceback: str

    def __str__(self) -> str:
        return f"rank {self.rank}: {error_text(self.error)}"


class WorkerError(FlodlError):
    """The run failed: a worker raised and no survivor was left, or a callback of the run raised.

    Attributes:
        failures: Every worker that failed, in the order in which they did.
        state: What had been trained, where a callback failed and the workers did not; else None.
    """

    def __init__(
        self, message: str, failures: Sequence[WorkerFailure] = (), state: "TrainedState | None" = None
    ) -> None:
        super().__init__(message)
        self.failures = tuple(failures)
        self.state = state


class SimulationError(FlodlError, RuntimeError):
    """A simulated run did not come to its end: the engine has a fault."""


class WorkerFailureWarning(UserWarning):
    """Some workers failed; the returned state is the average of those that did not."""
