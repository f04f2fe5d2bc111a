"""What the options of ``flodl simulate`` say of machines and of what goes wrong."""

from typing import TYPE_CHECKING

from flodl_cli.failures import CliError
from flodl_cli.parameters import split_list

if TYPE_CHECKING:
    from flodl_core.simulation import Death, SlowDown, Stall

MOST_RANKS = 10_000
MOST_DIGITS = 20
"""Of a rank or a batch; Python refuses to read thousands."""
MOST_BATCHES = 10_000_000
"""Some minutes of real time."""


def parse_speeds(text: str) -> tuple[float, ...]:
    """``1,0.4x3`` as (1.0, 0.4, 0.4, 0.4).

    Raises:
        CliError: A speed is no positive number, a count no positive integer, or there are too many.
    """
    speeds: list[float] = []
    for part in split_list(text):
        speed, times, count = part.partition("x")
        value = _number(speed)
        num_ranks = int(count) if _is_whole(count) else 0 if times else 1
        if value is None or not 0 < value < float("inf") or num_ranks < 1:
            raise CliError(f"--speeds wants positive numbers such as 1,0.4 or 1,0.4x8, not {part!r}")
        if len(speeds) + num_ranks > MOST_RANKS:
            raise CliError(f"--speeds names more than {MOST_RANKS:,} ranks")
        speeds += [value] * num_ranks
    return tuple(speeds)


def parse_slow_down(text: str) -> "SlowDown":
    """``0:0.4@4`` as rank 0 at 0.4 of its speed from epoch 4 on.

    Raises:
        CliError: It is not of that form.
    """
    from flodl_core.simulation import SlowDown

    rank, _, rest = text.partition(":")
    factor, _, epoch = rest.partition("@")
    value = _number(factor)
    if value is None or not (_is_whole(rank) and _is_whole(epoch)):
        raise CliError(f"--slow wants RANK:FACTOR@EPOCH such as 0:0.4@4, not {text!r}")
    return SlowDown(rank=int(rank), factor=value, epoch=int(epoch))


def parse_stall(text: str) -> "Stall":
    """``0:500@12`` as 500 ms more for batch 12 of rank 0.

    Raises:
        CliError: It is not of that form.
    """
    from flodl_core.simulation import Stall

    rank, _, rest = text.partition(":")
    ms, _, batch = rest.partition("@")
    value = _number(ms)
    if value is None or not (_is_whole(rank) and _is_whole(batch)):
        raise CliError(f"--stall wants RANK:MS@BATCH such as 0:500@12, not {text!r}")
    return Stall(rank=int(rank), batch=int(batch), ms=value)


def parse_ratios(text: str | None) -> tuple[float, ...] | None:
    """``2,1`` as (2.0, 1.0); None stays.

    Raises:
        CliError: A ratio is no number.
    """
    if text is None:
        return None
    ratios = [_number(part) for part in split_list(text)]
    numbers = tuple(ratio for ratio in ratios if ratio is not None)
    if len(numbers) < len(ratios):
        raise CliError(f"--partition-ratios wants a number for each rank such as 2,1, not {text!r}")
    return numbers


def parse_speed_hint(text: str | None) -> tuple[int, float] | None:
    """``1:2.5`` as: all others are 2.5 times as fast as rank 1; None stays.

    Raises:
        CliError: It is not of that form.
    """
    if text is None:
        return None
    rank, _, ratio = text.partition(":")
    value = _number(ratio)
    if value is None or not _is_whole(rank):
        raise CliError(f"--speed-hint wants RANK:RATIO such as 1:2.5, not {text!r}")
    return int(rank), value


def parse_switch(name: str, text: str | None, *, default: bool) -> bool:
    """``true`` or ``false``; None is the default.

    Raises:
        CliError: It is neither.
    """
    if text is None:
        return default
    if text not in ("true", "false"):
        raise CliError(f"{name} must be true or false, not {text!r}")
    return text == "true"


def parse_death(text: str) -> "Death":
    """``1@3`` as the end of rank 1 in epoch 3.

    Raises:
        CliError: It is not of that form.
    """
    from flodl_core.simulation import Death, Moment

    rank, _, epoch = text.partition("@")
    if not (_is_whole(rank) and _is_whole(epoch)):
        raise CliError(f"--die wants RANK@EPOCH such as 1@3, not {text!r}")
    return Death(rank=int(rank), moment=Moment.EPOCH, at=int(epoch))


def check_size(*, num_ranks: int, epochs: int, samples: int, batch_size: int) -> None:
    """Refuse what would take hours to simulate.

    Raises:
        CliError: There are too many batches.
    """
    # where an epoch has fewer batches than there are ranks, lockstep splits them
    num_batches = epochs * max(-(-samples // batch_size), min(num_ranks, samples))
    if num_batches > MOST_BATCHES:
        raise CliError(
            f"--epochs {epochs} and --samples {samples} make {num_batches:,} batches, and at most {MOST_BATCHES:,} are "
            "simulated: with fewer the figures are the same"
        )


def _is_whole(text: str) -> bool:
    return text.isdecimal() and len(text) < MOST_DIGITS


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
