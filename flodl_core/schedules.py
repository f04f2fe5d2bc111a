"""Schedules of the learning rate: pure functions of the position in a run.

In a run, lr = base x schedule(position) x scale, so a schedule is a factor of the lr that the optimizer was built with:
``base``, ``maximum`` and ``target`` are 1.0 unless given. Positions are batches of all workers together, not of one:

    total = num_epochs * math.ceil(num_samples / batch_size)
    builder.scheduler(lambda world_size: WarmupScheduler(
        CosineScheduler(total=total - 500), num_warmup=500
    ))

A schedule refuses arguments that make no sense (``ConfigError``, a ``ValueError``) when it is made, and a negative
position when it is called. ``PlateauScheduler``, which follows a measured value, is in ``flodl_core.plateau``.

Source of the formulas: the schedulers of flodl 0.5.2. Where they differ from PyTorch's of the same name, the class says
so.
"""

import abc
import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flodl_core.arguments import check_callable, real_number, whole_number
from flodl_core.display_text import value_text
from flodl_core.errors import ConfigError
from flodl_core.learning_rate import Schedule
from flodl_core.rounding import round_half_away

ONE_CYCLE_DIVISOR = 25
"""``OneCycleLR`` starts and ends at this fraction of its maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scheduler(abc.ABC):
    def __call__(self, position: int) -> float:
        """The factor at ``position``, in batches from 0.

        Raises:
            ValueError: ``position`` is negative.
        """
        if position < 0:
            raise ValueError(f"a position must be at least 0, not {position}")
        return self._at(position)

    @abc.abstractmethod
    def _at(self, position: int) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecay(_Scheduler):
    """base x gamma^floor(position / step_size).

    Attributes:
        step_size: Batches from one drop to the next, at least 1.
        gamma: Factor of each drop, at least 0.
        base: Factor before the first.
    """

    step_size: int
    gamma: float = 0.1
    base: float = 1.0

    def __post_init__(self) -> None:
        whole_number("step_size", self.step_size, least=1)
        real_number("gamma", self.gamma, least=0.0)
        real_number("base", self.base, least=0.0)

    def _at(self, position: int) -> float:
        return self.base * _power(self.gamma, position // self.step_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialLR(_Scheduler):
    """base x gamma^position.

    Attributes:
        gamma: Factor from each batch to the next, at least 0.
        base: Factor at 0.
    """

    gamma: float
    base: float = 1.0

    def __post_init__(self) -> None:
        real_number("gamma", self.gamma, least=0.0)
        real_number("base", self.base, least=0.0)

    def _at(self, position: int) -> float:
        return self.base * _power(self.gamma, position)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiStepLR(_Scheduler):
    """base x gamma^(milestones reached).

    Attributes:
        milestones: Positions from which on the next drop holds, each at least 0; in any order, and one that is given
            twice counts twice.
        gamma: Factor of each drop, at least 0.
        base: Factor before the first.
    """

    milestones: Sequence[int]
    gamma: float = 0.1
    base: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.milestones, Iterable):
            raise ConfigError(f"milestones must be integers in a list, not {value_text(self.milestones)}")
        ascending = tuple(sorted(whole_number("a milestone", milestone, least=0) for milestone in self.milestones))
        object.__setattr__(self, "milestones", ascending)  # a list stays its owner's to change
        real_number("gamma", self.gamma, least=0.0)
        real_number("base", self.base, least=0.0)

    def _at(self, position: int) -> float:
        return self.base * _power(self.gamma, bisect.bisect_right(self.milestones, position))


@dataclass(frozen=True, slots=True, kw_only=True)
class CosineScheduler(_Scheduler):
    """Half a cosine from base to minimum over ``total`` batches, and minimum from there on: no restarts.

    minimum + (base - minimum) x (1 + cos(pi x t)) / 2 with t = min(position, total) / total.

    Attributes:
        total: Batches until the minimum, at least 1.
        minimum: Factor at the end, at most ``base``.
        base: Factor at 0.
    """

    total: int
    minimum: float = 0.0
    base: float = 1.0

    def __post_init__(self) -> None:
        whole_number("total", self.total, least=1)
        real_number("base", self.base, least=0.0)
        real_number("minimum", self.minimum, least=0.0, most=self.base)

    def _at(self, position: int) -> float:
        return self.minimum + (self.base - self.minimum) * _cosine_fall(min(position, self.total), self.total)


@dataclass(frozen=True, slots=True)
class WarmupScheduler(_Scheduler):
    """A linear rise before another schedule, which then starts from its own 0.

    target x (position + 1) / num_warmup while position < num_warmup, then inner(position - num_warmup). The first batch
    has target / num_warmup, not 0, and the last of the rise the target itself.

    Attributes:
        inner: The schedule that follows. The target is not taken from it: where they differ, the factor jumps.
        num_warmup: Batches of the rise, at least 0.
        target: Factor at its end.
    """

    inner: Schedule
    num_warmup: int
    target: float = 1.0

    def __post_init__(self) -> None:
        check_callable("inner", self.inner)
        whole_number("num_warmup", self.num_warmup, least=0)
        real_number("target", self.target, least=0.0)

    def _at(self, position: int) -> float:
        if position < self.num_warmup:
            return self.target * ((position + 1) / self.num_warmup)
        return self.inner(position - self.num_warmup)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCycleLR(_Scheduler):
    """A linear rise from maximum / 25 to maximum, then half a cosine back to maximum / 25, where it stays.

    Unlike PyTorch's, it ends where it began (PyTorch's far lower), rises in a line and leaves momentum alone.

    Attributes:
        total: Batches of the cycle, at least 1.
        warmup_frac: Share of them in the rise, from 0 to 1; their number is rounded, halves up.
        maximum: Factor at the peak.
    """

    total: int
    warmup_frac: float = 0.3
    maximum: float = 1.0

    def __post_init__(self) -> None:
        whole_number("total", self.total, least=1)
        real_number("warmup_frac", self.warmup_frac, least=0.0, most=1.0)
        real_number("maximum", self.maximum, least=0.0)

    def _at(self, position: int) -> float:
        peak = round_half_away(self.warmup_frac * self.total)
        lowest = self.maximum / ONE_CYCLE_DIVISOR
        step = min(position, self.total)
        height = step / peak if step < peak else _cosine_fall(step - peak, max(self.total - peak, 1))
        return lowest + (self.maximum - lowest) * height


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicLR(_Scheduler):
    """Up in a line from base to maximum and down again, over and over.

    Attributes:
        base: Factor at the bottom, at most ``maximum``.
        step_size_up: Batches of each rise, at least 1.
        step_size_down: Batches of each fall, at least 1; None for as many as of a rise.
        maximum: Factor at the top.
    """

    base: float
    step_size_up: int
    step_size_down: int | None = None
    maximum: float = 1.0

    def __post_init__(self) -> None:
        whole_number("step_size_up", self.step_size_up, least=1)
        if self.step_size_down is not None:
            whole_number("step_size_down", self.step_size_down, least=1)
        real_number("maximum", self.maximum, least=0.0)
        real_number("base", self.base, least=0.0, most=self.maximum)

    def _at(self, position: int) -> float:
        up = self.step_size_up
        down = up if self.step_size_down is None else self.step_size_down
        step = position % (up + down)
        height = step / up if step <= up else (up + down - step) / down
        return self.base + (self.maximum - self.base) * height


def _cosine_fall(step: int, total: int) -> float:
    """(1 + cos(pi x step / total)) / 2: from 1 at 0 to 0 at ``total``."""
    # as a sine of what is left: near the end, 1 + cos loses all its digits
    return math.sin(0.5 * math.pi * ((total - step) / total)) ** 2


def _power(gamma: float, exponent: int) -> float:
    try:
        return math.pow(gamma, exponent)
    except OverflowError:
        raise OverflowError(
            f"the learning rate has grown beyond all numbers: gamma {gamma:g} to the power {exponent}"
        ) from None
