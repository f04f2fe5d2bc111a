"""MNIST, 28x28 pixels, with three models that literature has figures for."""

from functools import lru_cache
from pathlib import Path

import torch
from torch import nn

from flows.errors import DataError
from flows.recipes.classification import LabelledTensors, cross_entropy_step, evaluate_classifier, fused_adam
from flows.recipes.data_folder import data_folder
from flows.recipes.idx import read_idx
from flows.recipes.recipe import ModelFactory, Recipe

# Of the training set's pixels over 255; the figures that everybody normalises MNIST by.
MEAN, STD = 0.1307, 0.3081
NUM_CLASSES = 10
SIDE = 28


def logistic_regression(device: torch.device) -> nn.Module:
    """One linear layer; takes images of shape (batch, 1, 28, 28)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, NUM_CLASSES)).to(device)


def perceptron(device: torch.device) -> nn.Module:
    """784-256-128-10; takes images of shape (batch, 1, 28, 28)."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(SIDE * SIDE, 256),
        nn.ReLU(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, NUM_CLASSES),
    ).to(device)


def lenet_5(device: torch.device) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling; takes images of shape (batch, 1, 28, 28)."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, NUM_CLASSES),
    ).to(device)


def load_mnist() -> tuple[LabelledTensors, LabelledTensors]:
    """Training and test data: normalised images, float32, shape (n, 1, 28, 28), and digits, int64, shape (n,).

    Raises:
        DataError: The folder or a file is missing or damaged.
    """
    return _load(data_folder("mnist", what="train-images-idx3-ubyte.gz and the three files that belong to it"))


@lru_cache(maxsize=1)  # training and evaluation, and the recipes among themselves, share one copy
def _load(folder: Path) -> tuple[LabelledTensors, LabelledTensors]:
    return _load_part(folder, "train"), _load_part(folder, "t10k")


def _load_part(folder: Path, part: str) -> LabelledTensors:
    images_path, labels_path = folder / f"{part}-images-idx3-ubyte.gz", folder / f"{part}-labels-idx1-ubyte.gz"
    images, labels = read_idx(images_path, num_dims=3), read_idx(labels_path, num_dims=1)
    if len(images) == 0 or images.shape[1:] != (SIDE, SIDE):
        raise DataError(f"{images_path} must hold images of {SIDE}x{SIDE} pixels, not of shape {images.shape}")
    if len(images) != len(labels):
        raise DataError(f"{images_path} holds {len(images)} images, and {labels_path} {len(labels)} labels")
    if labels.max() >= NUM_CLASSES:
        raise DataError(f"{labels_path} must hold digits from 0 to 9, and holds {labels.max()}")
    pixels = torch.tensor(images).unsqueeze(1).float().div_(255).sub_(MEAN).div_(STD)
    return pixels, torch.tensor(labels, dtype=torch.int64)


def _mnist_recipe(name: str, description: str, model: ModelFactory, *, epochs: int = 5) -> Recipe:
    return Recipe(
        name=name,
        description=description,
        model=model,
        optimizer=fused_adam,
        loss=cross_entropy_step,
        dataset=lambda: load_mnist()[0],
        evaluate=lambda trained: evaluate_classifier(trained, load_mnist()[1]),
        epochs=epochs,
        batch_size=64,
        lr=1e-3,
    )


logistic = _mnist_recipe("mnist-logistic", "MNIST, logistic regression", logistic_regression)
mlp = _mnist_recipe("mnist-mlp", "MNIST, perceptron 784-256-128-10", perceptron)
lenet = _mnist_recipe("mnist-lenet", "MNIST, LeNet-5 with ReLU and max pooling", lenet_5)
