"""What the README shows is true: its example runs as it stands."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.data_paths import REPOSITORY


def test_the_example_trains_and_saves_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), flags=re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example)
    monkeypatch.chdir(tmp_path)

    names = runpy.run_path(str(script))

    assert names["epoch"].epoch == 4
    assert names["epoch"].avg_loss < 0.1
    assert (tmp_path / "model.safetensors").stat().st_size > 0
