"""The 1,797 handwritten digits of UCI, 8x8 pixels, and a small convolutional net: a run that needs nothing else."""

import gzip
from functools import lru_cache
from importlib.resources import files

import numpy as np
import torch
from torch import nn

from flows.recipes.classification import LabelledTensors, cross_entropy_step, evaluate_classifier, fused_adam
from flows.recipes.recipe import Recipe

MAX_PIXEL = 16.0
NUM_CLASSES = 10
EVAL_EVERY = 5


def conv_net(device: torch.device) -> nn.Module:
    """Two convolutions and two linear layers; takes images of shape (batch, 1, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, NUM_CLASSES),
    ).to(device)


@lru_cache(maxsize=1)
def load_digits() -> tuple[LabelledTensors, LabelledTensors]:
    """Training and evaluation data: images, float32 from 0 to 1, shape (n, 1, 8, 8), and digits, int64, shape (n,).

    Every fifth image of each digit, in the order of the file, is kept for evaluation: the same split everywhere, with
    each digit in it by its share.
    """
    packed = files("flows.recipes").joinpath("data", "digits.csv.gz").read_bytes()
    table = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",", dtype=np.int64)
    images = torch.from_numpy(table[:, :-1]).float().div(MAX_PIXEL).reshape(-1, 1, 8, 8)
    digits = torch.from_numpy(table[:, -1].copy())
    is_eval = torch.zeros(len(digits), dtype=torch.bool)
    for digit in range(NUM_CLASSES):
        is_eval[(digits == digit).nonzero().flatten()[EVAL_EVERY - 1 :: EVAL_EVERY]] = True
    return (images[~is_eval], digits[~is_eval]), (images[is_eval], digits[is_eval])


recipe = Recipe(
    name="digits",
    description="1,797 handwritten digits of 8x8 pixels (shipped), small convolutional net",
    model=conv_net,
    optimizer=fused_adam,
    loss=cross_entropy_step,
    dataset=lambda: load_digits()[0],
    evaluate=lambda model: evaluate_classifier(model, load_digits()[1]),
    epochs=10,
    batch_size=16,
    lr=1e-3,
)
