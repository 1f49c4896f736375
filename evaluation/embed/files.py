"""Embeddings on the disk: ``NAME.npy`` with a row per image, ``NAME.tsv`` with a line per row.

A line has the number of the row, the name of the image and its label, which is empty if the
identity is not known. Files come from other programs, too: they are read without running code, and
what does not fit together is refused.

A million embeddings of 512 numbers are 2 GB: the file has its length from the start, so that a full
disk shows at once, and its readers may map it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from numpy.typing import NDArray

from evaluation.files import map_floats
from runtime.errors import DataError
from runtime.files import open_regular, read_lines

_COPIED_BYTES = 1 << 20
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
    lines = read_lines(path, "an index of embeddings", errors="surrogateescape")
    for number, line in enumerate(lines):
        words = line.split("\t")
        if len(words) != 3 or words[0] != str(number):
            raise DataError(
                f"{path}: line {number + 1} is {line[:80]!r} instead of the number {number}, a "
                "name and a label, with tabs between; write it again"
            )
        names.append(words[1])
        labels.append(words[2])
    return names, labels


def _header(rows: int, width: int) -> bytes:
    """Return what a file begins with (NumPy's format 1.0), of one length for any shape."""
    content = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    begin = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
    return (begin + repr(content).encode()).ljust(_HEADER_BYTES - 1) + b"\n"


def begin_rows(file: BinaryIO, rows: int, width: int) -> None:
    """Reserve the length of ``rows`` rows of ``width`` numbers in a new file, and write its header.

    The rows are written next, as little-endian float32.

    Raises:
        OSError: the disk has no room for it.
    """
    file.write(_header(rows, width))
    os.posix_fallocate(file.fileno(), 0, _HEADER_BYTES + rows * width * 4)


def end_rows(file: BinaryIO, rows: int, width: int) -> None:
    """Shorten a file to the number of rows that were written, which its header says then."""
    file.truncate(_HEADER_BYTES + rows * width * 4)
    file.seek(0)
    file.write(_header(rows, width))
    file.flush()


def write_safetensors(
    source: Path, file: BinaryIO, shape: tuple[int, int], notes: dict[str, str]
) -> None:
    """Write the rows of a ``.npy`` file as the tensor ``embeddings`` in safetensors' format.

    In blocks, where the library of that name would need the whole file in memory: the length of the
    header, the header as JSON, and the numbers.

    Args:
        source: a file that ``end_rows`` has finished.
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
        shutil.copyfileobj(rows, file, _COPIED_BYTES)
