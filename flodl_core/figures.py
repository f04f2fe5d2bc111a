"""What ``eval_fn`` returns, as numbers by name."""

from collections.abc import Mapping
from typing import Any

from flodl_core.arguments import check_text
from flodl_core.display_text import value_text
from flodl_core.errors import ConfigError


def figures_of(result: Any) -> dict[str, float]:
    """What ``eval_fn`` returned, as numbers by name.

    Raises:
        ConfigError: It is something else.
    """
    if not isinstance(result, Mapping):
        wanted = 'numbers by name such as {"accuracy": 0.9}'
        raise ConfigError(f"eval_fn must return {wanted}, not {value_text(result)}")
    return {check_text("a name that eval_fn returns", name): _figure(name, value) for name, value in result.items()}


def _figure(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ConfigError(f"eval_fn must return a number as {name!r}, not {value_text(value)}") from error
