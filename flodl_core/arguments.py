"""Checks of what a caller passes: each names the argument, what it may be and what came."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from flodl_core.devices import WorkerSpec, parse_worker_spec
from flodl_core.errors import ConfigError


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
        raise ConfigError(f"{name} must be True or False, not {value!r}")
    return value


def whole_number(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """The value, if it is an integer within limits.

    Raises:
        ConfigError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} must be an integer {limits}, not {value!r}")
    return int(value)


def real_number(
    name: str, value: Any, *, above: float | None = None, least: float | None = None, most: float | None = None
) -> float:
    """The value, if it is a finite number within limits.

    Raises:
        ConfigError: It is not.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    is_low = is_number and ((above is not None and value <= above) or (least is not None and value < least))
    is_high = is_number and most is not None and value > most
    if not is_number or is_low or is_high:
        limits = [("above", above), ("at least", least), ("at most", most)]
        wanted = " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)
        raise ConfigError(f"{name} must be a finite number {wanted}".rstrip() + f", not {value!r}")
    return float(value)


def check_ratios(name: str, values: Any) -> tuple[float, ...]:
    """The values, if they are finite numbers above 0.

    Raises:
        ConfigError: They are not.
    """
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise ConfigError(f"{name} must be numbers above 0, one for each worker, not {values!r}")
    return tuple(real_number(f"each of {name}", value, above=0.0) for value in values)


def check_amp(value: Any) -> torch.dtype | None:
    """The dtype of autocast, or None.

    Raises:
        ConfigError: It is another one than bfloat16.
    """
    if value in (None, False):
        return None
    if value is True or value in ("bfloat16", "bf16", torch.bfloat16):
        return torch.bfloat16
    if value in ("float16", "fp16", torch.float16):
        raise ConfigError("amp in float16 needs loss scaling, which is not built: use bfloat16")
    raise ConfigError(f"amp must be bfloat16 or None, not {value!r}")


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
