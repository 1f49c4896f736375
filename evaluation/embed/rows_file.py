"""The rows of a ``.npy`` file that several processes write, each its own part.

A million embeddings of 512 numbers are 2 GB, so the file is as long as it will be from the start,
and rows are written where they belong. By positioned writes and not through a memory map: a map
ends the process without a word when the disk is full, and two hosts that share a network disk would
overwrite each other's rows on the page in which their parts meet. Who reads the file may map it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from evaluation.folds import Features
from runtime.files import open_kept, open_regular

_BLOCK = 4096


def _header(rows: int, width: int) -> bytes:
    """Return what a file begins with (NumPy's format 1.0), of one length for any shape."""
    content = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    begin = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
    return (begin + repr(content).encode()).ljust(_HEADER_BYTES - 1) + b"\n"


_HEADER_BYTES = 128


def pack_rows(rows: Features) -> bytes:
    """Return a whole file of rows float32 [n, width]."""
    return _header(*rows.shape) + rows.astype("<f4", copy=False).tobytes()


def reserve(file: BinaryIO, rows: int, width: int) -> None:
    """Make an empty file as long as that of ``rows`` rows of ``width`` numbers.

    Raises:
        OSError: the disk has no room for it.
    """
    file.write(_header(rows, width))
    file.flush()
    os.posix_fallocate(file.fileno(), 0, _HEADER_BYTES + rows * width * 4)


class RowsFile:
    """A file that ``reserve`` has made, open for writing; a context manager."""

    def __init__(self, path: Path, width: int) -> None:
        self._file = open(open_kept(path, os.O_RDWR), "r+b")
        self._row_bytes = 4 * width
        self._width = width

    def __enter__(self) -> RowsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, first: int, rows: Features) -> None:
        """Write rows float32 [n, width] from row ``first`` on."""
        assert rows.dtype == np.float32 and rows.shape[1:] == (self._width,), rows.shape
        self._file.seek(_HEADER_BYTES + first * self._row_bytes)
        self._file.write(rows.astype("<f4", copy=False).tobytes())

    def flush(self) -> None:
        """Have the rows on the disk, where other hosts find them."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close_gaps(self, parts: Sequence[tuple[int, int]]) -> int:
        """Move the rows of parts together, shorten the file, and return the number of rows.

        Args:
            parts: first row, and number of rows that are written from there on, in order.
        """
        end = 0
        for first, count in parts:
            for start in range(0, count if first != end else 0, _BLOCK):
                rows = min(_BLOCK, count - start)
                self._file.seek(_HEADER_BYTES + (first + start) * self._row_bytes)
                block = self._file.read(rows * self._row_bytes)
                self._file.seek(_HEADER_BYTES + (end + start) * self._row_bytes)
                self._file.write(block)
            end += count
        self._file.flush()
        self._file.truncate(_HEADER_BYTES + end * self._row_bytes)
        self._file.seek(0)
        self._file.write(_header(end, self._width))
        self.flush()
        return end


def write_safetensors(
    source: Path, file: BinaryIO, shape: tuple[int, int], notes: dict[str, str]
) -> None:
    """Write the rows of a ``.npy`` file as the tensor ``embeddings`` in safetensors' format.

    In blocks, where the library of that name would need the whole file in memory: the length of the
    header, the header as JSON, and the numbers.

    Args:
        source: a file that ``reserve`` has made.
        file: is written to.
        shape: rows and width.
        notes: what is said about them.
    """
    tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * shape[0] * shape[1]]}
    header = json.dumps({"__metadata__": notes, "embeddings": tensor}).encode()
    # The numbers are aligned to eight bytes.
    header += b" " * (-len(header) % 8)
    file.write(len(header).to_bytes(8, "little") + header)
    with open_regular(source) as rows:
        rows.seek(_HEADER_BYTES)
        shutil.copyfileobj(rows, file, _BLOCK * 4 * shape[1])
