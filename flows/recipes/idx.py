"""Reader of gzipped IDX files, the form in which MNIST is published.

The form: two zero bytes, a byte for the type of the elements (8 for unsigned bytes), a byte for the number of
dimensions, each dimension as a big-endian 32-bit integer, then the elements in C order.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flows.errors import DataError

_UNSIGNED_BYTE = 8


def read_idx(path: Path, *, num_dims: int) -> NDArray[np.uint8]:
    """The unsigned bytes in a gzipped IDX file, in the shape that the file gives.

    Raises:
        DataError: The file is missing, not gzip, cut short, or not an IDX file of bytes in ``num_dims`` dimensions.
    """
    data = _unzip(path)
    header_bytes = 4 + 4 * num_dims
    if len(data) < header_bytes or data[:4] != bytes([0, 0, _UNSIGNED_BYTE, num_dims]):
        raise DataError(
            f"{path} is not an IDX file of bytes in {num_dims} dimension{'s' * (num_dims > 1)}: it starts with "
            f"{data[:4].hex(' ') or 'nothing'}"
        )
    shape = tuple(int(size) for size in np.frombuffer(data, dtype=">u4", count=num_dims, offset=4))
    elements = np.frombuffer(data, dtype=np.uint8, offset=header_bytes)
    expected = math.prod(shape)
    if elements.size != expected:
        raise DataError(
            f"{path} must hold {expected} bytes for shape {shape}, and holds {elements.size}: fetch it again"
        )
    return elements.reshape(shape)


def _unzip(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"no file {path}: put it there, or set FLODL_DATA to another folder") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or cut short ({error}): fetch it again") from error
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror or error})") from error
