"""A missing data folder skips a test on a person's machine and fails it in continuous integration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data_paths import flodl_data


def test_flodl_data_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_DATA", str(tmp_path))

    assert flodl_data() == tmp_path


def test_missing_folder_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_DATA", str(tmp_path / "absent"))
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="FLODL_DATA"):
        flodl_data()


def test_missing_folder_fails_in_continuous_integration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_DATA", str(tmp_path / "absent"))
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match="FLODL_DATA"):
        flodl_data()
