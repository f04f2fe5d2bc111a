"""The IDX reader takes what is right and names what is wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from flows.errors import DataError
from flows.recipes.idx import read_idx

TWO_BY_THREE = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3])


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(gzip.compress(data))
    return path


def test_elements_come_in_the_files_shape(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gz", TWO_BY_THREE + bytes(range(6)))
    np.testing.assert_array_equal(read_idx(path, num_dims=2), [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an IDX file of bytes in 2 dimensions: it starts with nothing"),
        (b"\x00\x00\x0d\x02" + TWO_BY_THREE[4:] + bytes(6), "not an IDX file .* starts with 00 00 0d 02"),
        (b"\x00\x00\x08\x01" + TWO_BY_THREE[4:] + bytes(6), "not an IDX file of bytes in 2 dimensions"),
        (TWO_BY_THREE[:9], "not an IDX file"),
        (TWO_BY_THREE + bytes(5), r"must hold 6 bytes for shape \(2, 3\), and holds 5: fetch it again"),
        (TWO_BY_THREE + bytes(7), "must hold 6 bytes .* and holds 7"),
        (bytes([0, 0, 8, 2]) + b"\xff" * 8, "must hold 18446744065119617025 bytes"),
    ],
)
def test_a_wrong_file_is_named(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_idx(write(tmp_path / "x.gz", data), num_dims=2)


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gz", TWO_BY_THREE + bytes(range(6)))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match="is damaged or cut short"):
        read_idx(path, num_dims=2)


def test_a_file_with_a_flipped_bit_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gz", TWO_BY_THREE + bytes(range(6)))
    data = bytearray(path.read_bytes())
    data[-6] ^= 1  # in the checksum
    path.write_bytes(data)
    with pytest.raises(DataError, match="is damaged or cut short"):
        read_idx(path, num_dims=2)


def test_a_file_that_is_no_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(TWO_BY_THREE)
    with pytest.raises(DataError, match="is damaged or cut short"):
        read_idx(path, num_dims=2)


def test_a_missing_file_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file .* set FLODL_DATA"):
        read_idx(tmp_path / "x.gz", num_dims=2)


def test_a_folder_in_the_files_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*Is a directory"):
        read_idx(tmp_path, num_dims=2)
