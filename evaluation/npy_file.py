"""Arrays of floats in NumPy's format (``.npy``), from files that others may have made.

``numpy.load`` runs no code of such a file, but waits for a pipe, and gives a header of any length
to Python's parser, which takes a hundred times its memory.
"""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from runtime.files import open_regular

# That of floats has 118 bytes.
_LONGEST_HEADER = 4096
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def map_floats(path: Path) -> Optional[NDArray[Any]]:
    """Map the array of a file, read-only; return None if the file holds no array of floats.

    Raises:
        OSError: the file is missing or not a regular file, or may not be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        beginning = io.BytesIO(file.read(_LONGEST_HEADER))
        # Headers are parsed by Python's tokenizer and parser, whose errors are of many classes.
        try:
            read_header = _HEADERS[np.lib.format.read_magic(beginning)]
            shape, is_fortran, dtype = read_header(beginning)
            length = math.prod(shape) * dtype.itemsize
            if dtype.kind != "f" or min(shape, default=0) < 0 or beginning.tell() + length > size:
                return None
            order = "F" if is_fortran else "C"
            if not length:
                return np.empty(shape, dtype, order)
            return np.memmap(file, dtype, "r", beginning.tell(), shape, order)
        except Exception:
            return None
