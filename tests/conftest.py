"""What holds for every test: it cleans up after itself, and GPU tests are skipped where there is no GPU."""

from __future__ import annotations

import pytest

from tests.leaks import nothing_left_behind

__all__ = ["nothing_left_behind"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``gpu`` where torch finds no CUDA device."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch  # only here: most of the suite starts faster without it

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch finds none")
