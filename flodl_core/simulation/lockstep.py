"""What the same machines would take in lockstep: the yardstick of a simulated run."""

from flodl_core.partition import equal_sizes
from flodl_core.simulation.machine import Machine
from flodl_core.simulation.spec import SimulationSpec


def lockstep_wall_s(spec: SimulationSpec) -> float:
    """How long plain data parallelism takes for the same epochs, from the first batch's start to the last one's end.

    In every step each rank computes a batch of equal size, all wait for the slowest, and an average follows before the
    next: wall = sum over steps of (max over ranks of the batch's time) + (steps - 1) x average_ms. What is left of an
    epoch is split evenly into its last step. Speeds, slow-downs, stalls and jitter are those of the run, and drawn in
    the same way: a rank's n-th batch has the same factor here and there. Workers that die there do not die here. One
    rank alone has nothing to average.

    Args:
        spec: The run.

    Returns:
        Seconds.
    """
    machines = [Machine(spec, rank) for rank in range(spec.world_size)]
    whole_steps, rest = divmod(spec.epoch_size, spec.world_size * spec.batch_size)
    steps = [(spec.batch_size,) * spec.world_size] * whole_steps
    if rest > 0:
        steps.append(equal_sizes(spec.world_size, rest))
    computing_ms = sum(
        max(
            machine.next_batch_ms(epoch=epoch, size=size) for machine, size in zip(machines, sizes, strict=True) if size
        )
        for epoch in range(spec.num_epochs)
        for sizes in steps
    )
    num_averages = spec.num_epochs * len(steps) - 1 if spec.world_size > 1 else 0
    return (computing_ms + num_averages * spec.average_ms) / 1e3
