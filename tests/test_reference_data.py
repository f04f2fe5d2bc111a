from __future__ import annotations

from pathlib import Path

import pytest

from tests.reference_data import reference_cases


def test_cases_are_read_from_the_folder_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some.json").write_text('{"description": "", "cases": [{"x": 1}]}')
    monkeypatch.setenv("FLODL_REFERENCE", str(tmp_path))
    assert reference_cases("some") == [{"x": 1}]


def test_absent_data_skip_the_test_and_name_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_REFERENCE", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="set FLODL_REFERENCE"):
        reference_cases("some")


def test_absent_data_fail_the_test_under_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_REFERENCE", str(tmp_path))
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="set FLODL_REFERENCE"):
        reference_cases("some")
