"""flodl's part of the comparison, in a process of its own."""

import argparse

import torch
from torch import nn

from benchmarks.peers.lap import Lap, Task, add_arguments, load_tensors, make_judge, make_task
from flodl_core import Ddp


def train(task: Task, data: object, *, policy: str, backend: str, workers: str) -> Lap:
    """Train as anyone would. Unlike the rivals', its clock counts all of a run, from its start to its end."""
    lap = Lap()
    # PyTorch imports much when the process makes its first optimizer: the rivals' clocks start after that
    task.recipe.optimizer(task.recipe.model(torch.device("cpu")).parameters(), task.recipe.lr)

    def keep(_version: int, model: nn.Module) -> None:
        lap.mark(model)

    builder = (
        Ddp.builder(task.recipe.model, lambda params: task.recipe.optimizer(params, task.recipe.lr), task.recipe.loss)
        .dataset(data)
        .batch_size(task.recipe.batch_size)
        .num_epochs(task.epochs)
        .policy(policy)
        .backend(backend)
        .workers(workers)
        .devices(task.devices)
        .seed(task.seed)
        .checkpoint_fn(keep)
    )
    lap.start()
    handle = builder.run()
    handle.join()
    lap.stop(handle.progress().totals.num_samples)
    return lap


def main() -> None:
    """Train once and print the lap."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--workers", required=True)
    arguments = parser.parse_args()
    task = make_task(arguments)
    data = load_tensors(task)
    lap = train(task, data, policy=arguments.policy, backend=arguments.backend, workers=arguments.workers)
    lap.hand_in(task, make_judge(task, data))


if __name__ == "__main__":
    main()
