"""Loss, optimizer and evaluation of models that tell classes apart."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

EVAL_BATCH = 1000

LabelledTensors = tuple[Tensor, Tensor]


def cross_entropy_step(model: nn.Module, batch: LabelledTensors) -> Tensor:
    """Mean cross-entropy of a batch.

    Args:
        model: Gives logits, shape (batch, classes).
        batch: Inputs, shape (batch, ...), and classes, int64, shape (batch,).
    """
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets)


def fused_adam(params: Iterable[nn.Parameter], lr: float) -> Adam:
    """Adam whose step is one kernel over all parameters: on small models most of a step is the calls themselves."""
    return Adam(params, lr=lr, fused=True)


def evaluate_classifier(model: nn.Module, data: LabelledTensors) -> dict[str, float]:
    """Accuracy and mean cross-entropy of ``model``, in evaluation mode; the mode is put back afterwards.

    Args:
        model: Gives logits, shape (batch, classes).
        data: Inputs, shape (n, ...), and classes, int64, shape (n,); moved to the model's device batch by batch.

    Returns:
        ``accuracy`` from 0 to 1 and ``loss``.
    """
    inputs, targets = data
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    loss_sum, num_right = 0.0, 0
    try:
        with torch.inference_mode():
            for x, y in zip(inputs.split(EVAL_BATCH), targets.split(EVAL_BATCH), strict=True):
                logits, classes = model(x.to(device)), y.to(device)
                loss_sum += F.cross_entropy(logits, classes, reduction="sum").item()
                num_right += int((logits.argmax(dim=1) == classes).sum().item())
    finally:
        model.train(was_training)
    return {"accuracy": num_right / len(targets), "loss": loss_sum / len(targets)}
