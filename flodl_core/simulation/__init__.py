"""The real coordinator and the real worker logic in virtual time, without a tensor."""

from flodl_core.simulation.run import Outcome, VirtualRun, VirtualSpec

__all__ = ["Outcome", "VirtualRun", "VirtualSpec"]
