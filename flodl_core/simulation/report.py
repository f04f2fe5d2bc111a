"""What a simulated run comes to."""

from collections.abc import Callable
from dataclasses import dataclass

from flodl_core.simulation.lockstep import lockstep_wall_s
from flodl_core.simulation.simulation import Simulation
from flodl_core.simulation.spec import SimulationSpec
from flodl_core.simulation.worker import Activity


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """One rank. Times in seconds, from the start of the run to its end.

    Attributes:
        num_samples: Trained by it.
        num_batches: Its optimizer steps.
        batch_share: Its share of all ranks' steps.
        train_s: Spent in batches.
        average_s: Spent in averages, snapshots and merges; in sync through the CPU the wait for them as well.
        wait_s: Spent waiting for the others with samples at hand.
        no_data_s: Spent without samples.
    """

    num_samples: int
    num_batches: int
    batch_share: float
    train_s: float
    average_s: float
    wait_s: float
    no_data_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """The run as a whole.

    Attributes:
        status: ``completed``, ``cancelled`` or ``failed``.
        wall_s: From the first batch's start to the last one's end.
        lockstep_wall_s: What plain data parallelism would take; see ``lockstep``.
        capacity_efficiency: How busy the devices were kept; see ``flodl_core.efficiency``.
        epoch_efficiency: The same, from epoch to epoch.
        num_syncs: Averages.
        num_samples: Trained by all ranks.
        global_step: Their optimizer steps.
        anchor: Batches of the slowest rank between two averages, at the end.
        lost_ranks: Ranks whose workers died, in order of their deaths.
        ranks: Shape (world_size,).
        num_messages: Messages that the coordinator handled.
    """

    status: str
    wall_s: float
    lockstep_wall_s: float
    capacity_efficiency: float
    epoch_efficiency: tuple[float, ...]
    num_syncs: int
    num_samples: int
    global_step: int
    anchor: int
    lost_ranks: tuple[int, ...]
    ranks: tuple[RankReport, ...]
    num_messages: int

    @property
    def speed_up(self) -> float:
        """Over lockstep: how many times as fast."""
        return self.lockstep_wall_s / self.wall_s if self.wall_s > 0 else 0.0


def simulate(spec: SimulationSpec, *, on_progress: Callable[[int], None] | None = None) -> SimulationReport:
    """Simulate a run to its end.

    Args:
        spec: The run.
        on_progress: Called now and then with the samples that have been trained.

    Raises:
        SimulationError: It did not come to its end.
    """
    simulation = Simulation(spec)
    simulation.run(on_progress=on_progress)
    return report(simulation)


def report(simulation: Simulation) -> SimulationReport:
    """Sum up a simulation that has run."""
    assert simulation.finish is not None, "only a run that has finished can be summed up"
    coordinator = simulation.coordinator
    totals = coordinator.book.totals()
    return SimulationReport(
        status=simulation.finish.status,
        wall_s=totals.wall_s,
        lockstep_wall_s=lockstep_wall_s(simulation.spec),
        capacity_efficiency=totals.capacity_efficiency,
        epoch_efficiency=tuple(metrics.capacity_efficiency for metrics in simulation.epochs),
        num_syncs=coordinator.num_syncs,
        num_samples=totals.num_samples,
        global_step=totals.num_batches,
        anchor=coordinator.anchor,
        lost_ranks=tuple(failure.rank for failure in coordinator.failures),
        ranks=_ranks(simulation),
        num_messages=simulation.num_messages,
    )


def _ranks(simulation: Simulation) -> tuple[RankReport, ...]:
    totals = simulation.coordinator.book.totals()
    return tuple(
        RankReport(
            num_samples=num_samples,
            num_batches=num_batches,
            batch_share=num_batches / totals.num_batches if totals.num_batches else 0.0,
            train_s=worker.spent_s[Activity.TRAIN],
            average_s=worker.spent_s[Activity.AVERAGE],
            wait_s=worker.spent_s[Activity.WAIT],
            no_data_s=worker.spent_s[Activity.NO_DATA],
        )
        for num_samples, num_batches, worker in zip(
            totals.rank_samples, totals.rank_batches, simulation.workers, strict=True
        )
    )
