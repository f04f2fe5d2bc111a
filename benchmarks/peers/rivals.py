"""The rivals' loops, as their own documentation writes them; started by ``torchrun`` with one process for each worker.

``ddp`` is DistributedDataParallel, ``periodic`` PyTorch's ``PeriodicModelAverager``, ``accelerate`` Hugging Face's
``LocalSGD``, ``fabric`` Lightning Fabric's DDP; ``bare`` never averages.
"""

import argparse
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from benchmarks.peers.lap import Lap, Task, add_arguments, load_tensors, make_judge, make_task


@dataclass(slots=True, kw_only=True)
class Loop:
    """What differs from rival to rival.

    Attributes:
        model: What is called.
        optimizer: What is stepped.
        backward: What is done with the loss.
        after_step: What is done after each step.
        around: What the whole loop runs in.
    """

    model: nn.Module
    optimizer: Optimizer
    backward: Callable[[Tensor], object] = Tensor.backward
    after_step: Callable[[], object] = lambda: None
    around: AbstractContextManager[Any] = field(default_factory=nullcontext)


def make_bare(task: Task, module: nn.Module, optimizer: Optimizer) -> Loop:
    """No averages: what the processes reach at most."""
    return Loop(model=module, optimizer=optimizer)


def make_ddp(task: Task, module: nn.Module, optimizer: Optimizer) -> Loop:
    """Gradients are averaged in every batch."""
    return Loop(model=DistributedDataParallel(module), optimizer=optimizer)


def make_periodic(task: Task, module: nn.Module, optimizer: Optimizer) -> Loop:
    """Parameters are averaged every ``period`` batches."""
    averager = PeriodicModelAverager(period=task.period, warmup_steps=0)
    params = list(module.parameters())
    return Loop(model=module, optimizer=optimizer, after_step=lambda: averager.average_parameters(params))


def make_accelerate(task: Task, module: nn.Module, optimizer: Optimizer) -> Loop:
    """Hugging Face's Local SGD."""
    from accelerate import Accelerator  # type: ignore[import-not-found]  # installed for this alone
    from accelerate.local_sgd import LocalSGD  # type: ignore[import-not-found]

    accelerator = Accelerator(cpu=True)
    model, prepared = accelerator.prepare(module, optimizer)
    local = LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=task.period, enabled=True)
    return Loop(model=model, optimizer=prepared, backward=accelerator.backward, after_step=local.step, around=local)


def make_fabric(task: Task, module: nn.Module, optimizer: Optimizer) -> Loop:
    """Lightning Fabric's DDP."""
    from lightning_fabric import Fabric  # type: ignore[import-not-found]  # installed for this alone

    fabric = Fabric(accelerator="cpu", devices=len(task.devices), strategy="ddp")
    fabric.launch()
    model, prepared = fabric.setup(module, optimizer)
    return Loop(model=model, optimizer=prepared, backward=fabric.backward)


MAKERS = {
    "bare": make_bare,
    "ddp": make_ddp,
    "periodic": make_periodic,
    "accelerate": make_accelerate,
    "fabric": make_fabric,
}


class Stretch:
    """Makes a device slow, as flodl's emulated ones are: it sleeps for a multiple of what its own work takes.

    It sleeps between forward and backward, so that the others wait for its gradients. What backward and step will take
    is taken from the batch before; waiting for others is no work, so it counts its thread's processor time.
    """

    def __init__(self, slowdown: float) -> None:
        self._factor = slowdown - 1.0
        self._start_s = 0.0
        self._rest_s = 0.0

    def begin(self) -> None:
        """A batch begins."""
        self._start_s = time.thread_time()

    def sleep(self) -> None:
        """Its forward is done."""
        if self._factor > 0:
            now_s = time.thread_time()
            time.sleep(self._factor * (now_s - self._start_s + self._rest_s))
            self._start_s = now_s

    def end(self) -> None:
        """Its step is done."""
        self._rest_s = time.thread_time() - self._start_s


def train(task: Task, kind: str, data: tuple[Tensor, ...], *, rank: int) -> Lap:
    """The loop that all rivals share. Each rank takes every n-th sample of an epoch's order, as a sampler would."""
    world_size = len(task.devices)
    torch.manual_seed(task.seed)
    module = task.recipe.model(torch.device("cpu"))
    loop = MAKERS[kind](task, module, task.recipe.optimizer(module.parameters(), task.lr))
    stretch = Stretch(task.devices[rank].slowdown)
    num_samples = len(data[0]) // world_size * world_size
    lap = Lap()
    dist.barrier()
    lap.start()
    with loop.around:
        for epoch in range(task.epochs):
            order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(task.seed + epoch))
            for indices in order[:num_samples][rank::world_size].split(task.recipe.batch_size):
                stretch.begin()
                loss = task.recipe.loss(loop.model, tuple(tensor.index_select(0, indices) for tensor in data))
                stretch.sleep()
                loop.backward(loss)
                loop.optimizer.step()
                loop.after_step()  # before the gradients go: the averager skips parameters that have none
                loop.optimizer.zero_grad(set_to_none=True)
                stretch.end()
            lap.mark(module)
    dist.barrier()
    lap.stop(num_samples * task.epochs)
    return lap


def main() -> None:
    """Train once; rank 0 prints the lap."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--kind", choices=list(MAKERS), required=True)
    arguments = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo asks for the host's own name else, which may not resolve
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    task = make_task(arguments)
    data = load_tensors(task)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    try:
        lap = train(task, arguments.kind, data, rank=rank)
        if rank == 0:
            lap.hand_in(task, make_judge(task, data))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
