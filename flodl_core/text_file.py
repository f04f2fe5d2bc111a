"""Writing a text file whole, and values as JSON and CSV have them."""

import csv
import io
import json
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` so that ``path`` never holds a part of it, and is left as it was where writing fails.

    Raises:
        OSError: The file cannot be written.
    """
    part = path.with_name(f"{path.name}.{threading.get_native_id()}.part")  # two threads may write the same file
    try:
        part.write_text(text, encoding="utf-8", newline="")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def json_text(value: object) -> str:
    """Valid JSON: numbers that are not finite become the texts ``NaN``, ``Infinity`` and ``-Infinity``."""
    return json.dumps(_finite(value), allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a heading. None is an empty cell; text that a spreadsheet would take for a formula gets a quote."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_cell(column) for column in columns])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str):
        text = value.replace("\r\n", "\n").replace("\r", "\n")  # csv does not quote a lone return, which ends a row
        return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
    return repr(value) if isinstance(value, float) else value
