"""Files of a run: where they lie, how large they are, what their bytes' SHA-256 is."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from sqlalchemy import delete, insert, select
from sqlalchemy.exc import IntegrityError

from flodl_store.database import Database
from flodl_store.errors import UnknownRunError
from flodl_store.home import flodl_home, sha256_of
from flodl_store.tables import Table

Kind = Literal["state", "log"]

_ARTIFACT = Table.metadata.tables["artifact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactView:
    """A file of a run.

    Attributes:
        run_id: Whose it is.
        kind: ``state``, the trained state, or ``log``.
        path: Relative to the folder of all artifacts, with ``/``.
        size_bytes: Its size when it was recorded.
        sha256: Of its bytes then, 64 hexadecimal digits.
        created_at: When it was recorded.
    """

    run_id: str
    kind: str
    path: str
    size_bytes: int
    sha256: str
    created_at: datetime

    @property
    def file(self) -> Path:
        """Where it lies, in the home that this process has."""
        return artifact_root() / self.path


def artifact_root() -> Path:
    """The folder of all artifacts; it need not exist yet.

    Raises:
        HomeError: There is no telling where the home is.
    """
    return flodl_home() / "artifacts"


def save_artifact(db: Database, run_id: str, kind: Kind, file: Path, *, sha256: str | None = None) -> ArtifactView:
    """Record a file that lies in the folder of artifacts; one recorded under that path before is replaced.

    Args:
        db: Where to.
        run_id: Whose it is.
        kind: What it holds.
        file: The file, which exists.
        sha256: Of its bytes, where it is known already.

    Raises:
        ValueError: The file lies elsewhere.
        UnknownRunError: There is no such run.
        DatabaseUnreachableError: The database does not answer.
    """
    view = ArtifactView(
        run_id=run_id,
        kind=kind,
        path=file.resolve().relative_to(artifact_root().resolve()).as_posix(),
        size_bytes=file.stat().st_size,
        sha256=sha256 or sha256_of(file),
        created_at=db.clock(),
    )
    values = {name: getattr(view, name) for name in ArtifactView.__slots__}
    try:
        with db.write() as connection:
            connection.execute(delete(_ARTIFACT).where(_ARTIFACT.c.run_id == run_id, _ARTIFACT.c.path == view.path))
            connection.execute(insert(_ARTIFACT).values(values))
    except IntegrityError as error:
        raise UnknownRunError(f"there is no run {run_id}") from error
    return view


def list_artifacts(db: Database, run_id: str) -> list[ArtifactView]:
    """Every file of a run, oldest first.

    Raises:
        DatabaseUnreachableError: The database does not answer.
    """
    query = select(_ARTIFACT).where(_ARTIFACT.c.run_id == run_id).order_by(_ARTIFACT.c.created_at, _ARTIFACT.c.path)
    with db.read() as connection:
        return [ArtifactView(**row) for row in connection.execute(query).mappings()]


def find_artifact(db: Database, run_id: str, kind: Kind) -> ArtifactView | None:
    """The newest file of a run that is of this kind, or None.

    Raises:
        DatabaseUnreachableError: The database does not answer.
    """
    found = [artifact for artifact in list_artifacts(db, run_id) if artifact.kind == kind]
    return found[-1] if found else None
