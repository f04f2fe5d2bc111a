"""One ``flodl up`` for each home, and where the services are that it runs."""

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where services answer.

    Attributes:
        pid: Process that runs them.
        dashboard: Such as ``http://127.0.0.1:8000``.
        prefect_api: Such as ``http://127.0.0.1:4200/api``.
    """

    pid: int
    dashboard: str
    prefect_api: str


class UpLock:
    """A file that a running ``flodl up`` holds locked; the lock goes with the process, however that ends.

    Args:
        path: The file. Its folder exists.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self) -> bool:
        """Whether the lock is ours now, rather than another process's."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        os.ftruncate(self._descriptor, 0)
        return True

    def publish(self, addresses: Addresses) -> None:
        """Tell others where the services are. Only while the lock is ours."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(asdict(addresses)).encode(), 0)

    def read(self) -> Addresses | None:
        """What the holder has published; None while its services are starting."""
        text = os.pread(self._descriptor, 65536, 0)
        return Addresses(**json.loads(text)) if text else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
