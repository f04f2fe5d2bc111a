"""Files of a run, as the database knows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from flodl_store.artifacts import artifact_root, find_artifact, list_artifacts, save_artifact
from flodl_store.database import Database
from flodl_store.errors import UnknownRunError
from flodl_store.home import sha256_of
from tests.databases import FakeClock
from tests.flodl_store.rows import running


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "home"))
    path = tmp_path / "home" / "artifacts" / "x" / "state.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"first")
    return path


def test_a_file_is_known_by_its_place_among_the_artifacts(db: Database, clock: FakeClock, file: Path) -> None:
    run_id = running(db)
    saved = save_artifact(db, run_id, "state", file)
    assert (saved.path, saved.size_bytes, saved.sha256) == ("x/state.safetensors", 5, sha256_of(file))
    assert (saved.created_at, saved.file) == (clock.now, file)
    assert list_artifacts(db, run_id) == [saved]
    assert artifact_root() == file.parent.parent


def test_a_file_that_was_saved_again_is_known_once(db: Database, file: Path) -> None:
    run_id = running(db)
    save_artifact(db, run_id, "state", file)
    file.write_bytes(b"the second")
    assert save_artifact(db, run_id, "state", file).size_bytes == 10
    assert [found.sha256 for found in list_artifacts(db, run_id)] == [sha256_of(file)]


def test_the_newest_file_of_a_kind_is_found(db: Database, clock: FakeClock, file: Path) -> None:
    run_id = running(db)
    assert find_artifact(db, run_id, "state") is None
    save_artifact(db, run_id, "state", file)
    clock.advance(1)
    later = file.with_name("a-later.safetensors")
    later.write_bytes(b"later")
    save_artifact(db, run_id, "state", later)
    found = find_artifact(db, run_id, "state")
    assert found is not None
    assert found.file == later
    assert find_artifact(db, run_id, "log") is None


def test_a_file_elsewhere_is_none_of_the_artifacts(db: Database, file: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    with pytest.raises(ValueError, match="elsewhere"):
        save_artifact(db, running(db), "state", elsewhere)


def test_a_run_that_is_not_there_has_no_files(db: Database, file: Path) -> None:
    with pytest.raises(UnknownRunError, match="there is no run x"):
        save_artifact(db, "x", "state", file)
