"""Simulated runs with one interleaving forced: a message is taken only once something else has happened.

Everything else is the simulator's, and so the engine's own code; a run that does not end raises ``SimulationError``.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flodl_core.messages import ToCoordinator, ToWorker
from flodl_core.simulation import Observer, Simulation, SimulationSpec
from flodl_core.simulation.worker import Activity
from tests.flodl_core.simulation.recording import Recording

LOOK_MS = 2.0
"""Virtual time between two looks at what is waited for."""
MAX_STEPS = 50_000
"""Things that may happen in a run before it counts as one that does not end; none of these needs a tenth of it."""


@dataclass(slots=True, kw_only=True)
class Hold:
    """Keeps messages back, and all that come behind them on the same way.

    Attributes:
        rank: Whose inbox.
        kind: Messages of this type.
        until: What has to be so before the first of them is taken.
        of: Of these, only those of which this is true.
        num_held: How often one was kept back, and taken when what it waited for was so.
    """

    rank: int
    kind: type[Any]
    until: Callable[["Forced"], bool]
    of: Callable[[Any], bool] = lambda message: True
    num_held: int = 0
    _is_holding: bool = field(default=False, repr=False)

    def keeps(self, run: "Forced", message: ToWorker) -> bool:
        """Whether the message, the next in its rank's inbox, has to wait."""
        if not isinstance(message, self.kind) or not self.of(message):
            return False
        is_so = self.until(run)
        self.num_held += self._is_holding and is_so
        self._is_holding = not is_so
        return self._is_holding


class Forced(Simulation):
    """A simulation whose workers find messages late, and which is told something at a moment of the test's choice.

    Args:
        spec: The run.
        observer: Who is told of everything.
        holds: What workers find late.
        told: What the coordinator is told once ...
        once: ... this is so; it is asked after each message that the coordinator takes.
    """

    def __init__(
        self,
        spec: SimulationSpec,
        observer: Observer,
        *,
        holds: Sequence[Hold] = (),
        told: ToCoordinator | None = None,
        once: Callable[["Forced"], bool] = lambda run: False,
    ) -> None:
        self.inboxes: dict[int, deque[ToWorker]] = defaultdict(deque)
        """What has come for each rank and is kept back."""
        self.is_told = False
        self._holds = holds
        self._told = told
        self._once = once
        self._looking: set[int] = set()
        super().__init__(spec, observer)

    def _arrive(self, rank: int, message: ToWorker) -> None:
        self.inboxes[rank].append(message)
        self._deliver(rank)

    def _look(self, rank: int) -> None:
        self._looking.discard(rank)
        self._deliver(rank)

    def _deliver(self, rank: int) -> None:
        kept = self.inboxes[rank]
        while kept and not any(hold.rank == rank and hold.keeps(self, kept[0]) for hold in self._holds):
            super()._arrive(rank, kept.popleft())
        if kept and rank not in self._looking:
            self._looking.add(rank)
            self.clock.after(LOOK_MS / 1e3, self._look, rank)

    def _receive(self, message: ToCoordinator) -> None:
        super()._receive(message)
        if self._told is not None and not self.is_told and self._once(self):
            self.is_told = True
            super()._receive(self._told)


def run_forced(
    spec: SimulationSpec,
    *holds: Hold,
    told: ToCoordinator | None = None,
    once: Callable[[Forced], bool] = lambda run: False,
) -> Recording:
    """Run to the end, and see to it that what was to be forced took place.

    Raises:
        SimulationError: The run does not end.
    """
    recording = Recording(spec)
    forced = Forced(spec, recording, holds=holds, told=told, once=once)
    recording.simulation = forced
    forced.run(max_steps=MAX_STEPS)
    assert all(hold.num_held > 0 for hold in holds), "the interleaving did not come about"
    assert forced.is_told == (told is not None), "the moment did not come"
    return recording


def others_wait(run: Simulation, rank: int) -> bool:
    """Whether all ranks but this one stand still at an average, or have ended."""
    return all(worker.activity is not Activity.TRAIN for worker in run.workers if worker.rank != rank)
