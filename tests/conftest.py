"""What holds for every test: it cleans up after itself, is not timed, and needs a GPU only where it says so."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.leaks import nothing_left_behind
from tests.postgres import postgres

__all__ = ["nothing_left_behind", "postgres"]

# A slow machine is not a failure. All else as hypothesis has it, here or in continuous integration.
settings.register_profile("flodl", settings.default, deadline=None)
settings.load_profile("flodl")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``gpu`` where torch finds no CUDA device."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch  # only here: most of the suite starts faster without it

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch finds none")
