"""Where the tests find the data sets that the repository does not carry."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def flodl_data() -> Path:
    """Folder that holds ``mnist/``: ``FLODL_DATA``, else ``../shared/data`` as seen from the repository.

    Where there is no such folder the calling test is skipped; where ``CI`` is set it fails, since a suite that
    skips its data there would show nothing.
    """
    folder = Path(os.environ.get("FLODL_DATA") or REPOSITORY.parent / "shared" / "data")
    if folder.is_dir():
        return folder
    reason = f"no data folder at {folder}: set FLODL_DATA to a folder that holds mnist/"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
