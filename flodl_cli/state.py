"""``flodl state``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flodl_cli.failures import RUN_FAILED, CliError
from flodl_store.errors import HomeError
from flodl_store.home import atomic_path, sha256_of
from flodl_store.plain_json import dump_json

if TYPE_CHECKING:
    from flodl_store.artifacts import ArtifactView

RunName = Annotated[str, typer.Argument(metavar="RUN", help="Its id, the beginning of it, or latest.")]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Copy the state to FILE; - is standard output."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
CHUNK_BYTES = 1 << 20
STANDARD_OUTPUT = "-"


def state(run: RunName, output: Output = None, as_json: AsJson = False) -> None:
    """Say where the trained state of a run is, or copy it; its checksum is verified."""
    from flodl_store.artifacts import find_artifact  # the database's libraries take a while to import
    from flodl_store.database import open_database
    from flodl_store.runs import get_run

    if as_json and output == STANDARD_OUTPUT:
        raise CliError("--json and -o - both want standard output: choose one")
    with open_database() as db:
        view = get_run(db, run)
        found = find_artifact(db, view.id, "state")
    if found is None:
        raise CliError(f"run {view.id} is {view.status} and has no trained state")
    if not found.file.is_file():
        raise CliError(f"the trained state of run {view.id} is not at {found.file} any more")
    if sha256_of(found.file) != found.sha256:
        raise CliError(f"{found.file} is not the file that run {view.id} saved: it has changed", exit_code=RUN_FAILED)
    if output is not None:
        _copy(found, output)
    if as_json:
        fields = {"run_id": view.id, "path": str(found.file), "size_bytes": found.size_bytes, "sha256": found.sha256}
        print(dump_json({**fields, "output": output}))
    elif output is None:
        print(f"{found.file}\nsha256 {found.sha256}, {found.size_bytes:,} bytes")


def _copy(found: "ArtifactView", output: str) -> None:
    with found.file.open("rb") as source:
        if output == STANDARD_OUTPUT:
            while chunk := source.read(CHUNK_BYTES):
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            return
        target = Path(output)
        if target.is_dir() or not target.absolute().parent.is_dir():
            raise CliError(f"cannot write to {target}: it is a folder, or lies in one that is not there")
        try:
            with atomic_path(target) as temporary, temporary.open("wb") as copy:
                while chunk := source.read(CHUNK_BYTES):
                    copy.write(chunk)
        except HomeError as error:
            raise CliError(f"cannot write to {target}: {error.__cause__}") from error
