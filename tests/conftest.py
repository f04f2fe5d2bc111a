"""What holds for every test: it cleans up after itself, is not timed, and needs a GPU only where it says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.leaks import nothing_left_behind
from tests.postgres import postgres
from tests.running_services import RunningServices, running_services

__all__ = ["nothing_left_behind", "postgres"]


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServices]:
    """A ``flodl up`` that runs for the whole session."""
    with running_services(tmp_path_factory.mktemp("up")) as services:
        yield services


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
