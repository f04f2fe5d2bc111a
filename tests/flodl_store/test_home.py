"""Where a run's files go, and that they are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from flodl_store.errors import HomeError
from flodl_store.home import atomic_path, create_run_folder, flodl_home, sha256_of, write_atomic
from flodl_store.run_id import new_run_id


def test_home_is_the_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "here"))
    assert flodl_home() == tmp_path / "here"


@pytest.mark.parametrize("value", [None, ""])
def test_home_is_in_the_users_home_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if value is None:
        monkeypatch.delenv("FLODL_HOME", raising=False)
    else:
        monkeypatch.setenv("FLODL_HOME", value)
    assert flodl_home() == tmp_path / ".flodl"


def test_a_relative_home_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLODL_HOME", "runs")
    assert flodl_home() == tmp_path / "runs"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_HOME", "~nobody-of-this-name/x")
    with pytest.raises(HomeError, match="set FLODL_HOME"):
        flodl_home()


def test_a_run_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLODL_HOME", str(tmp_path))
    run_id = new_run_id()
    folder = create_run_folder(run_id)
    assert folder.path == tmp_path / "artifacts" / run_id
    assert list(folder.path.iterdir()) == []
    folder.discard()
    assert not folder.path.exists()


def test_a_home_that_is_a_file_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("FLODL_HOME", str(file))
    with pytest.raises(HomeError, match=r"cannot write to .*\(Not a directory\): set FLODL_HOME"):
        create_run_folder(new_run_id())


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_atomic(path, b"old")

    def write_half() -> None:
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"half of the n")
            raise RuntimeError("torn")

    with pytest.raises(RuntimeError, match="torn"):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_has_gone_is_a_home_error(tmp_path: Path) -> None:
    with pytest.raises(HomeError, match="cannot write to"):
        write_atomic(tmp_path / "gone" / "run.json", b"x")


def test_the_checksum_is_sha256(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    assert sha256_of(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
