"""Virtual time, and the wires between actors that live in it."""

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any


class Clock:
    """What is to happen, in order of time; what is due at the same time, in the order in which it was asked for."""

    __slots__ = ("_due", "_order", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()

    def at(self, time_s: float, do: Callable[..., None], *args: Any) -> None:
        """Call ``do(*args)`` at ``time_s``."""
        assert time_s >= self.now_s, "time does not go back"
        heapq.heappush(self._due, (time_s, next(self._order), do, args))

    def after(self, delay_s: float, do: Callable[..., None], *args: Any) -> None:
        """Call ``do(*args)`` in ``delay_s`` from now."""
        self.at(self.now_s + delay_s, do, *args)

    def advance(self) -> bool:
        """Let the next thing happen; False where there is none."""
        if not self._due:
            return False
        self.now_s, _, do, args = heapq.heappop(self._due)
        do(*args)
        return True


class Wires:
    """Delivers with a random latency, first in, first out on each wire.

    Args:
        clock: The time.
        latency_ms: Each delivery takes a uniform draw from 0 to this.
        seed: Of the draws.
    """

    def __init__(self, clock: Clock, *, latency_ms: float, seed: int) -> None:
        self._clock = clock
        self._latency_s = latency_ms / 1e3
        self._rng = random.Random(f"wires of {seed}")
        self._busy_until_s: dict[int, float] = {}

    def deliver(self, wire: int, do: Callable[..., None], *args: Any) -> None:
        """Call ``do(*args)`` at the other end of ``wire`` when the message has come through."""
        due_s = max(self._clock.now_s + self._rng.random() * self._latency_s, self._busy_until_s.get(wire, 0.0))
        self._busy_until_s[wire] = due_s
        self._clock.at(due_s, do, *args)

    def deliver_ahead(self, wires: range, do: Callable[..., None], *args: Any) -> None:
        """Deliver behind all that these wires carry, and ahead of whatever they are given from now on."""
        due_s = max([self._clock.now_s, *(self._busy_until_s.get(wire, 0.0) for wire in wires)])
        self._busy_until_s.update(dict.fromkeys(wires, due_s))
        self._clock.at(due_s, do, *args)
