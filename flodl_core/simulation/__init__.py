"""The real coordinator and the real logic of its workers in virtual time, without a tensor or a thread."""

from flodl_core.simulation.lockstep import lockstep_wall_s
from flodl_core.simulation.observer import Observer
from flodl_core.simulation.report import RankReport, SimulationReport, report, simulate
from flodl_core.simulation.simulation import Simulation
from flodl_core.simulation.spec import Death, Moment, SimulationSpec, SlowDown, Stall

__all__ = [
    "Death",
    "Moment",
    "Observer",
    "RankReport",
    "Simulation",
    "SimulationReport",
    "SimulationSpec",
    "SlowDown",
    "Stall",
    "lockstep_wall_s",
    "report",
    "simulate",
]
