"""The MNIST recipes: their data and their models."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
import torch

from flows.errors import DataError
from flows.recipes import Recipe
from flows.recipes.mnist import lenet, load_mnist, logistic, mlp
from tests.data_paths import flodl_data


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = flodl_data()
    monkeypatch.setenv("FLODL_DATA", str(folder))
    return folder / "mnist"


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of the test part, under the names of both, that a test may damage."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for kind in ("images-idx3", "labels-idx1"):
        for part in ("train", "t10k"):
            shutil.copyfile(flodl_data() / "mnist" / f"t10k-{kind}-ubyte.gz", folder / f"{part}-{kind}-ubyte.gz")
    monkeypatch.setenv("FLODL_DATA", str(tmp_path))
    return folder


@pytest.mark.usefixtures("data")
def test_data_are_normalised_images_and_digits() -> None:
    (images, digits), (test_images, test_digits) = load_mnist()
    assert images.shape == (60000, 1, 28, 28)
    assert test_images.shape == (10000, 1, 28, 28)
    assert (len(digits), len(test_digits)) == (60000, 10000)
    assert abs(float(images.mean())) < 1e-3
    assert abs(float(images.std()) - 1) < 1e-3
    assert digits.dtype == torch.int64
    assert digits[:5].tolist() == [5, 0, 4, 1, 9]


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(("recipe", "num_params"), [(logistic, 7850), (mlp, 235146), (lenet, 61706)])
def test_models_take_the_data(recipe: Recipe, num_params: int) -> None:
    model = recipe.model(torch.device("cpu"))
    images, digits = recipe.dataset()
    assert sum(param.numel() for param in model.parameters()) == num_params
    assert recipe.loss(model, (images[:7], digits[:7])).shape == ()


def write_labels(folder: Path, labels: bytes) -> None:
    header = bytes([0, 0, 8, 1]) + len(labels).to_bytes(4, "big")
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + labels))


def test_labels_without_their_images_are_named(copied: Path) -> None:
    write_labels(copied, bytes(9999))
    with pytest.raises(DataError, match=r"train-images.* holds 10000 images, and .*train-labels.* 9999 labels"):
        load_mnist()


def test_a_label_that_is_no_digit_is_named(copied: Path) -> None:
    write_labels(copied, bytes(9999) + bytes([10]))
    with pytest.raises(DataError, match=r"must hold digits from 0 to 9, and holds 10"):
        load_mnist()


def test_images_of_another_size_are_named(copied: Path) -> None:
    header = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2])
    (copied / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + bytes(4)))
    with pytest.raises(DataError, match=r"must hold images of 28x28 pixels, not of shape \(1, 2, 2\)"):
        load_mnist()


def test_missing_test_data_are_found_out_with_the_training_data(copied: Path) -> None:
    (copied / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"no file .*t10k-labels"):
        mlp.dataset()
