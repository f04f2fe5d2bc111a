"""What a recipe is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

ModelFactory = Callable[[torch.device], nn.Module]
OptimizerFactory = Callable[[Iterable[nn.Parameter], float], Optimizer]
LossFunction = Callable[[nn.Module, Any], Tensor]
Evaluation = Callable[[nn.Module], dict[str, float]]
SchedulerFactory = Callable[[int], Callable[[int], float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A model, its data and how it is trained.

    Attributes:
        name: How people call it.
        description: One line for ``flodl recipes``.
        model: ``model(device)`` builds the model there. It is called once for each worker.
        optimizer: ``optimizer(params, lr)`` builds the optimizer of one worker.
        loss: ``loss(model, batch)`` returns the mean loss of a batch, a scalar tensor; backward and step are the
            worker's.
        dataset: ``dataset()`` returns the training data, in any form that ``Ddp.builder(...).dataset`` takes.
            It is called before training starts, so that missing data are found out then.
        evaluate: ``evaluate(model)`` returns figures by name, ``accuracy`` and ``loss`` where they apply. It is called
            after each epoch with the averaged model, and leaves the model in the mode in which it found it.
        scheduler: ``scheduler(world_size)`` returns the factor of the learning rate by global step.
        epochs: Default number of epochs.
        batch_size: Default number of samples in a worker's batch.
        lr: Default learning rate of one worker.
    """

    name: str
    description: str
    model: ModelFactory
    optimizer: OptimizerFactory
    loss: LossFunction
    dataset: Callable[[], Any]
    evaluate: Evaluation | None = None
    scheduler: SchedulerFactory | None = None
    epochs: int = 10
    batch_size: int = 64
    lr: float = 1e-3
