"""When replicas are averaged, and how."""

from enum import StrEnum
from typing import TypeVar

from flodl_core.display_text import value_text
from flodl_core.errors import ConfigError


class ApplyPolicy(StrEnum):
    """When the replicas are averaged."""

    SYNC = "sync"
    """Gradients after every batch: equal to one process on the concatenated batch."""
    CADENCE = "cadence"
    """Parameters, each time the slowest rank has done its anchor of batches (El Che)."""
    ASYNC = "async"
    """Parameters, when each rank has done the count of batches planned for it."""


class AverageBackend(StrEnum):
    """How the replicas are averaged."""

    NCCL = "nccl"
    """All-reduce over CUDA devices."""
    GLOO = "gloo"
    """All-reduce over CPU devices; workers meet and wait."""
    CPU = "cpu"
    """Through the coordinator; workers hand in a snapshot and train on."""


class NonFinitePolicy(StrEnum):
    """What happens to a replica whose parameters are NaN or infinite when an average is due."""

    EXCLUDE = "exclude"
    """It is left out, takes the mean of the others and a fresh optimizer state."""
    STOP = "stop"
    """The run fails."""


_E = TypeVar("_E", bound=StrEnum)


def parse_choice(kind: type[_E], value: str, *, what: str) -> _E:
    """Read a member of ``kind`` from its string.

    Raises:
        ConfigError: ``value`` names no member; the message lists those that exist.
    """
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{what} must be one of {', '.join(kind)}, not {value_text(value)}") from None
