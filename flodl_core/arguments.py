"""Checks of what a caller passes: each names the argument, what it may be and what came."""

import itertools
import math
import numbers
from collections.abc import Sequence
from typing import Any

import torch

from flodl_core.devices import WorkerSpec, parse_worker_spec
from flodl_core.display_text import value_text
from flodl_core.errors import ConfigError

MOST_WHOLE = 2**63 - 1
"""More does not fit into a tensor, a database or a double precision number of anything."""
MOST_WORKERS = 1024


def check_callable(name: str, value: Any) -> Any:
    """The value, if it can be called.

    Raises:
        ConfigError: It cannot.
    """
    if not callable(value):
        raise ConfigError(f"{name} must be callable, not {type(value).__name__}")
    return value


def check_flag(name: str, value: Any) -> bool:
    """The value, if it is a boolean.

    Raises:
        ConfigError: It is not; a string such as ``"false"`` would be true.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {value_text(value)}")
    return value


def check_text(name: str, value: Any) -> str:
    """The value, if it is a string.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a string, not {value_text(value)}")
    return value


def whole_number(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """The value, if it is an integer within limits; without an upper one, ``MOST_WHOLE`` is it.

    Raises:
        ConfigError: It is not.
    """
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)  # numpy's integers are some too
    if not is_whole or value < least or value > (MOST_WHOLE if most is None else most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        if is_whole and most is None and value > MOST_WHOLE:
            limits = f"from {least} to 2**63 - 1"
        raise ConfigError(f"{name} must be an integer {limits}, not {value_text(value)}")
    return int(value)


def real_number(
    name: str, value: Any, *, above: float | None = None, least: float | None = None, most: float | None = None
) -> float:
    """The value, if it is a finite number within limits.

    Raises:
        ConfigError: It is not.
    """
    number = _finite(value)
    is_low = number is not None and ((above is not None and number <= above) or (least is not None and number < least))
    is_high = number is not None and most is not None and number > most
    if number is None or is_low or is_high:
        limits = [("above", above), ("at least", least), ("at most", most)]
        wanted = " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)
        raise ConfigError(f"{name} must be a finite number {wanted}".rstrip() + f", not {value_text(value)}")
    return number


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond all floats
        return None
    return number if math.isfinite(number) else None


def check_ratios(name: str, values: Any) -> tuple[float, ...]:
    """The values, if they are finite numbers above 0.

    Raises:
        ConfigError: They are not.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Sequence) or not values:
        raise ConfigError(f"{name} must be numbers above 0, one for each worker, not {value_text(values)}")
    return tuple(real_number(f"each of {name}", value, above=0.0) for value in values)


def check_amp(value: Any) -> torch.dtype | None:
    """The dtype of autocast, or None.

    Raises:
        ConfigError: It is another one than bfloat16.
    """
    if value is None or value is False:
        return None
    name = value if isinstance(value, str | torch.dtype) else None  # an array would compare element by element
    if value is True or name in ("bfloat16", "bf16", torch.bfloat16):
        return torch.bfloat16
    if name in ("float16", "fp16", torch.float16):
        raise ConfigError("amp in float16 needs loss scaling, which is not built: use bfloat16")
    raise ConfigError(f"amp must be bfloat16 or None, not {value_text(value)}")


def check_devices(devices: Any) -> tuple[WorkerSpec, ...]:
    """The workers that some devices, or a single one, stand for.

    Raises:
        ConfigError: There is none, one of them stands for none, or there are more than ``MOST_WORKERS``.
    """
    if isinstance(devices, str | WorkerSpec | torch.device):
        devices = [devices]
    try:
        named = iter(devices)
    except TypeError:
        raise ConfigError(f'devices must be a list such as ["cpu", "cuda:0"], not {value_text(devices)}') from None
    specs = tuple(check_device(device) for device in itertools.islice(named, MOST_WORKERS + 1))
    if not specs:
        raise ConfigError("devices must name at least one device")
    if len(specs) > MOST_WORKERS:
        raise ConfigError(f"devices must name at most {MOST_WORKERS:,} workers: each is a thread")
    return specs


def check_device(device: Any) -> WorkerSpec:
    """The worker that a device stands for.

    Raises:
        ConfigError: It stands for none.
    """
    if isinstance(device, WorkerSpec):
        return device
    if isinstance(device, torch.device):
        return WorkerSpec(str(device))
    if isinstance(device, str):
        return parse_worker_spec(device)
    raise ConfigError(f"a device must be a string, a WorkerSpec or a torch.device, not {type(device).__name__}")
