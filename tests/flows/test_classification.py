"""Evaluation of a classifier."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from flows.recipes.classification import cross_entropy_step, evaluate_classifier, fused_adam


class Sees(nn.Module):
    """Logits are its input; remembers the sizes and the mode that it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(()))
        self.calls: list[tuple[int, bool]] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls.append((len(inputs), self.training))
        if bool(inputs.isnan().any()):
            raise ArithmeticError("nan")
        return inputs + self.anchor


def test_accuracy_and_loss_are_those_of_all_samples() -> None:
    logits = torch.zeros(4, 2)
    logits[:3, 1] = 50.0  # sure of class 1, three times
    figures = evaluate_classifier(Sees(), (logits, torch.tensor([1, 1, 1, 0])))
    assert figures["accuracy"] == 1.0  # a tie goes to the first class
    assert figures["loss"] == pytest.approx(math.log(2) / 4)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_evaluates_in_batches_and_keeps_its_mode(training: bool) -> None:
    model = Sees().train(training)
    evaluate_classifier(model, (torch.zeros(2500, 3), torch.zeros(2500, dtype=torch.int64)))
    assert model.calls == [(1000, False), (1000, False), (500, False)]
    assert model.training is training


def test_the_mode_is_put_back_after_an_error() -> None:
    model = Sees()
    with pytest.raises(ArithmeticError):
        evaluate_classifier(model, (torch.full((2, 3), math.nan), torch.zeros(2, dtype=torch.int64)))
    assert model.training


def test_the_step_is_the_mean_loss_and_adam_is_fused() -> None:
    model = Sees()
    loss = cross_entropy_step(model, (torch.zeros(2, 4), torch.tensor([0, 3])))
    assert loss.item() == pytest.approx(math.log(4))
    optimizer = fused_adam(model.parameters(), 0.5)
    loss.backward()
    optimizer.step()
    assert optimizer.defaults["fused"] is True
    assert optimizer.param_groups[0]["lr"] == 0.5
