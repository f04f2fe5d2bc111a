from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from flodl_core import Ddp, WorkerSpec
from tests.flodl_core.training import linear, numbered_samples


class CountingSGD(SGD):
    """Clears its gradients in a way of its own."""

    num_cleared = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.num_cleared += 1
        super().zero_grad(set_to_none)


def _loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def test_optimizer_that_clears_gradients_in_its_own_way_is_asked_to() -> None:
    made: list[CountingSGD] = []

    def make(params: Any) -> CountingSGD:
        made.append(CountingSGD(params, lr=0.01))
        return made[-1]

    handle = Ddp.builder(linear, make, _loss).dataset(numbered_samples(20)).batch_size(4).num_epochs(1)
    handle.devices([WorkerSpec("cpu")]).run().join(30.0)
    assert made[-1].num_cleared == 5


def test_gradients_that_no_optimizer_holds_do_not_pile_up() -> None:
    seen: list[bool] = []

    def only_bias(model: nn.Module) -> SGD:
        return SGD([param for param in model.parameters() if param.dim() == 1], lr=0.01)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        seen.append(all(param.grad is None for param in model.parameters()))
        return _loss(model, batch)

    builder = Ddp.builder(linear, only_bias, loss).dataset(numbered_samples(20)).batch_size(4).num_epochs(1)
    builder.devices([WorkerSpec("cpu")]).run().join(30.0)
    assert seen == [True] * 5


def test_loss_of_an_epoch_is_the_mean_over_its_samples() -> None:
    def constant_loss(model: nn.Module, batch: Any) -> Tensor:
        mean: Tensor = batch[2].double().mean()
        zero: Tensor = 0.0 * model(batch[0]).sum()
        return mean + zero

    builder = Ddp.builder(linear, lambda params: SGD(params, lr=0.1), constant_loss).dataset(numbered_samples(22))
    handle = builder.batch_size(4).num_epochs(1).devices([WorkerSpec("cpu")] * 2).policy("cadence").run()
    handle.join(30.0)
    (metrics,) = handle.poll_metrics()
    assert math.isclose(metrics.avg_loss, torch.arange(22.0).mean().item())
