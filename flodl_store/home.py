"""Where flodl keeps its files: ``$FLODL_HOME``, with a folder for each run in ``artifacts/``."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flodl_store.errors import HomeError


def flodl_home() -> Path:
    """``$FLODL_HOME``, else ``~/.flodl``, as an absolute path. It need not exist yet.

    Raises:
        HomeError: The path starts with ``~`` and the user has no home folder.
    """
    asked = os.environ.get("FLODL_HOME") or "~/.flodl"
    try:
        return Path(asked).expanduser().absolute()
    except RuntimeError:
        raise HomeError(
            f"cannot tell where {asked} is, for want of a home folder: set FLODL_HOME to a folder"
        ) from None


def make_home() -> Path:
    """``flodl_home()``, made where it is missing.

    Raises:
        HomeError: The folder cannot be made or written to.
    """
    home = flodl_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise HomeError(_unwritable(home, error)) from error
    return home


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The files of one run.

    Attributes:
        run_id: The run's name.
        path: The folder, which exists.
    """

    run_id: str
    path: Path

    @property
    def state_path(self) -> Path:
        """The trained state, a safetensors file."""
        return self.path / "state.safetensors"

    @property
    def log_path(self) -> Path:
        """What the run logged."""
        return self.path / "run.log"

    def discard(self) -> None:
        """Remove the folder and all that is in it: for a run that never started."""
        shutil.rmtree(self.path)


def create_run_folder(run_id: str) -> RunFolder:
    """Make ``$FLODL_HOME/artifacts/<run_id>``.

    Raises:
        HomeError: The folder cannot be made or written to.
    """
    home = flodl_home()
    path = home / "artifacts" / run_id
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise HomeError(_unwritable(path, error)) from error
    return RunFolder(run_id=run_id, path=path)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place, flushed to disk, when the block ends without an error.

    Whoever looks finds the old file or the new one, never a part. After an error nothing is left.

    Raises:
        HomeError: The file could not be flushed or renamed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)  # the rename itself is durable only once its folder is
    except OSError as error:
        raise HomeError(_unwritable(path, error)) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes) -> None:
    """Put ``data`` into ``path`` whole or not at all.

    Raises:
        HomeError: The file cannot be written.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"cannot write to {path} ({reason}): set FLODL_HOME to a folder that you can write to"
