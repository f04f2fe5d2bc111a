from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.byte_ranges import ByteRange, UnsatisfiableRangeError, parse_range


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", ByteRange(0, 1)),
        ("bytes=2-5", ByteRange(2, 6)),
        ("bytes=2-", ByteRange(2, 10)),
        ("bytes=-3", ByteRange(7, 10)),
        ("bytes=-99", ByteRange(0, 10)),
        ("bytes=9-99", ByteRange(9, 10)),
        ("Bytes=1-2", ByteRange(1, 3)),
    ],
)
def test_one_range_is_that_part(header: str, expected: ByteRange) -> None:
    assert parse_range(header, 10) == expected


@pytest.mark.parametrize(
    "header", [None, "", "bytes=", "bytes=-", "bytes=5-2", "bytes=0-1,3-4", "lines=1-2", "bytes=a-b"]
)
def test_what_is_no_single_range_means_the_whole_file(header: str | None) -> None:
    assert parse_range(header, 10) is None


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=99-100", "bytes=-0"])
def test_a_range_outside_of_the_file_is_refused(header: str) -> None:
    with pytest.raises(UnsatisfiableRangeError, match="has 10 bytes"):
        parse_range(header, 10)


@given(whole=st.integers(1, 1000), first=st.integers(0, 1200), last=st.integers(0, 1200))
def test_a_part_lies_within_the_file_and_begins_where_it_was_asked_to(whole: int, first: int, last: int) -> None:
    try:
        part = parse_range(f"bytes={first}-{last}", whole)
    except UnsatisfiableRangeError:
        assert first >= whole
        return
    if part is None:
        assert last < first
    else:
        assert part.start == first
        assert part.stop == min(last + 1, whole)
