"""Files that are whole or not there, JSON that every reader takes, tables that no spreadsheet runs."""

from __future__ import annotations

import csv
import io
import json
import threading
from pathlib import Path

import pytest

from flodl_core.text_file import csv_text, json_text, write_text


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "before\n")
    write_text(path, "after: é\n")
    assert path.read_bytes() == "after: é\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        write_text(tmp_path / "taken", "text")
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "nowhere" / "a.txt", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_two_threads_that_write_one_file_leave_one_of_their_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    barrier = threading.Barrier(2)
    texts = ["a" * 300_000, "b" * 500_000]

    def write(text: str) -> None:
        for _ in range(20):
            barrier.wait()
            write_text(path, text)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in texts
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_that_json_does_not_have_become_text() -> None:
    value = {"a": float("nan"), "b": [float("inf"), {"c": (-float("inf"), 1.5)}], 3: None}
    assert json.loads(json_text(value)) == {"a": "NaN", "b": ["Infinity", {"c": ["-Infinity", 1.5]}], "3": None}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-cmd", "@sum", "\tx", "\rx", "\n=x"])
def test_text_that_looks_like_a_formula_is_quoted(text: str) -> None:
    (row,) = csv.reader(io.StringIO(csv_text(["a"], [[text]]).partition("\n")[2], newline=""))
    assert row == ["'" + text.replace("\r", "\n")]


def test_a_name_with_a_return_in_it_does_not_end_a_row() -> None:
    table = csv_text(["a", "b\r"], [["x\ry", "z\r\n"]])
    assert list(csv.reader(io.StringIO(table, newline=""))) == [["a", "b\n"], ["x\ny", "z\n"]]


def test_numbers_keep_all_their_digits_and_none_is_empty() -> None:
    table = csv_text(["a", "b", "c", "d"], [[0.1 + 0.2, -3, None, 'x, "y"']])
    assert table == 'a,b,c,d\n0.30000000000000004,-3,,"x, ""y"""\n'
