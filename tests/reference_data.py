"""Where the tests find the numbers recorded from the reference implementation."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def reference_cases(name: str) -> list[dict[str, Any]]:
    """Cases of ``<name>.json`` in ``FLODL_REFERENCE``, else in ``../shared/reference`` as seen from the repository.

    Where there is no such file the calling test is skipped; where ``CI`` is set it fails, since a suite that skips
    its replays there would show nothing.
    """
    folder = Path(os.environ.get("FLODL_REFERENCE") or REPOSITORY.parent / "shared" / "reference")
    path = folder / f"{name}.json"
    if path.is_file():
        return _cases(path)
    reason = f"no reference data at {path}: set FLODL_REFERENCE to the folder that holds it"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@functools.cache
def _cases(path: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cases"]
    assert cases, f"{path} holds no case"
    return cases
