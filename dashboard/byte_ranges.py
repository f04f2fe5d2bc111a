"""``Range: bytes=..`` (RFC 9110, 14.1): which part of a file is asked for."""

import re
from dataclasses import dataclass

_RANGE = re.compile(r"bytes=\s*(\d*)-(\d*)\s*", re.IGNORECASE)


class UnsatisfiableRangeError(ValueError):
    """The range lies outside of the file."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``start`` to ``stop``, the latter not among them."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many bytes that is."""
        return self.stop - self.start

    def content_range(self, whole: int) -> str:
        """The answer's ``Content-Range``, of a file of ``whole`` bytes."""
        return f"bytes {self.start}-{self.stop - 1}/{whole}"


def parse_range(header: str | None, whole: int) -> ByteRange | None:
    """The one range that ``header`` asks for.

    Args:
        header: The request's ``Range``.
        whole: Bytes in the file.

    Returns:
        None where the whole file is to be sent: there is no range, it is malformed, or there are several of them,
        which a server may ignore.

    Raises:
        UnsatisfiableRangeError: It begins after the file's end, or asks for its last 0 bytes.
    """
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, stop = max(0, whole - int(last)), whole
    else:
        start, stop = int(first), min(whole, int(last) + 1) if last else whole
        if last and int(last) < start:
            return None
    if start >= stop:
        raise UnsatisfiableRangeError(f"the file has {whole} bytes, and {header} asks for none of them")
    return ByteRange(start, stop)
