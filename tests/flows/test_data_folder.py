"""Where data are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.errors import DataError
from flows.recipes.data_folder import data_folder


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    monkeypatch.setenv("FLODL_DATA", str(tmp_path))
    assert data_folder("mnist", what="files") == tmp_path / "mnist"


def test_otherwise_the_folder_data_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    monkeypatch.delenv("FLODL_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert data_folder("mnist", what="files") == tmp_path / "data" / "mnist"


def test_a_missing_folder_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLODL_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"no folder .*/mnist: set FLODL_DATA to a folder that holds mnist/ with files"):
        data_folder("mnist", what="files")


def test_a_named_folder_is_the_only_one_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLODL_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match="elsewhere"):
        data_folder("mnist", what="files")


def test_a_process_that_runs_elsewhere_looks_from_where_flodl_was_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    monkeypatch.delenv("FLODL_DATA", raising=False)
    monkeypatch.setenv("FLODL_STARTED_IN", str(tmp_path))
    assert data_folder("mnist", what="files") == tmp_path / "data" / "mnist"
