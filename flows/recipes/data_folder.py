"""Where recipes find data that the package does not carry."""

import os
from pathlib import Path

from flows.errors import DataError

# Looked for in this order where FLODL_DATA is not set, from the folder where flodl was started: FLODL_STARTED_IN where
# this process runs elsewhere.
DEFAULT_FOLDERS = (Path("data"), Path("..") / "shared" / "data")


def data_folder(name: str, *, what: str) -> Path:
    """The folder ``name`` in ``$FLODL_DATA``, else in ``data`` or ``../shared/data``.

    Args:
        name: Such as ``mnist``.
        what: What the folder must hold, for the message where there is none.

    Raises:
        DataError: There is no such folder.
    """
    asked = os.environ.get("FLODL_DATA")
    parents = (Path(asked),) if asked else DEFAULT_FOLDERS
    started_in = Path(os.environ.get("FLODL_STARTED_IN") or ".")
    folders = [(started_in / parent / name).absolute() for parent in parents]
    for folder in folders:
        if folder.is_dir():
            return folder
    raise DataError(f"no folder {folders[0]}: set FLODL_DATA to a folder that holds {name}/ with {what}")
