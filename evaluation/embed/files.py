"""Embeddings on the disk: ``NAME.npy`` with a row per image, ``NAME.tsv`` with a line per row.

A line has the number of the row, the name of the image and its label, which is empty if the
identity is not known. Files come from other programs, too: they are read without running code, and
what does not fit together is refused.

A million embeddings of 512 numbers are 2 GB, and several processes write them, each its own part.
So the file is as long as it will be from the start, and rows are written where they belong. By
positioned writes and not through a memory map: a map ends the process without a word when the disk
is full, and two hosts that share a network disk would overwrite each other's rows on the page in
which their parts meet. Who reads the file may map it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluation.files import map_floats
from evaluation.folds import Features
from runtime.errors import DataError
from runtime.files import open_kept, open_regular

_BLOCK = 4096
_HEADER_BYTES = 128


class Embeddings(NamedTuple):
    """Embeddings of images, read from the two files of ``evaluation.embed``.

    Attributes:
        path: of the rows.
        rows: floats [n, D], mapped into memory.
        names: of the images, n; the numbers of the rows if there is no index.
        labels: of the images, n, or empty if there is no index or no label in it.
    """

    path: Path
    rows: NDArray[Any]
    names: list[str]
    labels: list[str]


def write_index(file: BinaryIO, images: Iterable[tuple[str, str]]) -> None:
    """Write a line for each name and label."""
    for number, (name, label) in enumerate(images):
        file.write(f"{number}\t{name}\t{label}\n".encode(errors="surrogateescape"))


def read_embeddings(path: Path) -> Embeddings:
    """Map the rows of a ``.npy`` file, and read the index beside it if there is one.

    Raises:
        DataError: a file is missing, broken or no such file, or the two do not fit.
    """
    try:
        rows = map_floats(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if rows is None:
        raise DataError(
            f"{path} holds no embeddings, floats [n, D] in NumPy's format (.npy); make them with "
            "python -m evaluation.embed"
        )
    if not rows.size:
        raise DataError(f"{path} holds no embedding; its shape is {list(rows.shape)}")
    index = path.with_suffix(".tsv")
    if not os.path.lexists(index):
        return Embeddings(path, rows, list(map(str, range(len(rows)))), [])
    names, labels = _read_index(index)
    if len(names) != len(rows):
        raise DataError(
            f"{index} has {len(names):,} lines, and {path} {len(rows):,} rows; one of them is of "
            "other images"
        )
    return Embeddings(path, rows, names, labels if any(labels) else [])


def _read_index(path: Path) -> tuple[list[str], list[str]]:
    names, labels = [], []
    try:
        with open_regular(path) as file:
            lines = TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="\n")
            for number, line in enumerate(lines):
                words = line.rstrip("\r\n").split("\t")
                if len(words) != 3 or words[0] != str(number) or "\0" in line:
                    raise DataError(
                        f"{path}: line {number + 1} is {line[:80]!r} instead of the number "
                        f"{number}, a name and a label, with tabs between; write it again"
                    )
                names.append(words[1])
                labels.append(words[2])
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    return names, labels


def _header(rows: int, width: int) -> bytes:
    """Return what a file begins with (NumPy's format 1.0), of one length for any shape."""
    content = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    begin = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
    return (begin + repr(content).encode()).ljust(_HEADER_BYTES - 1) + b"\n"


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
