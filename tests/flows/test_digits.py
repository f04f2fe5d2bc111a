"""The digits recipe: its data and its model."""

from __future__ import annotations

import torch

from flows.recipes.digits import load_digits, recipe


def test_the_shipped_file_holds_1797_digits() -> None:
    (images, digits), (eval_images, eval_digits) = load_digits()
    assert len(images) + len(eval_images) == len(digits) + len(eval_digits) == 1797
    assert images.shape[1:] == (1, 8, 8)
    assert images.dtype == torch.float32
    assert digits.dtype == torch.int64
    assert (float(images.min()), float(images.max())) == (0.0, 1.0)


def test_a_fifth_of_each_digit_is_kept_for_evaluation() -> None:
    (_, digits), (_, eval_digits) = load_digits()
    num_eval = eval_digits.bincount()
    assert torch.equal(num_eval, (digits.bincount() + num_eval) // 5)


def test_no_image_is_on_both_sides() -> None:
    (images, _), (eval_images, _) = load_digits()
    seen = {image.numpy().tobytes() for image in images}
    assert sum(image.numpy().tobytes() in seen for image in eval_images) == 0


def test_the_model_takes_the_data() -> None:
    model = recipe.model(torch.device("cpu"))
    (images, digits), _ = load_digits()
    assert model(images[:5]).shape == (5, 10)
    assert recipe.loss(model, (images[:5], digits[:5])).shape == ()
