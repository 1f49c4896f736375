"""Tables of floats in NumPy's format (``.npy``) that come from others.

NumPy has Python parse a file's header, which raises errors of many classes, and takes whatever
shape and type stand there. Here the header has to be the one of a table, and the file to be as long
as its numbers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from runtime.files import open_regular

_MAGIC = b"\x93NUMPY"
# By major version: bytes of the length of the header.
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
_LONGEST_HEADER = 1 << 12
_HEADER = re.compile(
    rb"\{\s*'descr'\s*:\s*'([<>]f[248])'\s*,\s*'fortran_order'\s*:\s*(True|False)\s*,"
    rb"\s*'shape'\s*:\s*\((\d{1,15}), *(\d{1,15}),?\)\s*,?\s*\}\s*"
)


def map_floats(path: Path) -> Optional[NDArray[Any]]:
    """Map a table [n, width] of float16, float32 or float64; None if the file is something else.

    Raises:
        OSError: the file is missing or not a regular file, or may not be read.
    """
    with open_regular(path) as file:
        magic = file.read(len(_MAGIC) + 2)
        size = _LENGTH_BYTES.get(magic[len(_MAGIC)], 0) if len(magic) > len(_MAGIC) else 0
        length = int.from_bytes(file.read(size), "little")
        if not magic.startswith(_MAGIC) or not size or length > _LONGEST_HEADER:
            return None
        header = _HEADER.fullmatch(file.read(length))
        if header is None:
            return None
        dtype, start = np.dtype(header[1].decode()), file.tell()
        shape = int(header[3]), int(header[4])
        order: Any = "F" if header[2] == b"True" else "C"
        if file.seek(0, 2) != start + dtype.itemsize * shape[0] * shape[1]:
            return None
        if 0 in shape:
            # There is nothing to map.
            return np.zeros(shape, dtype)
        return np.memmap(file, dtype, "r", start, shape, order)
