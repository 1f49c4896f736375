"""Files that the commands of this room write where an option says, and embeddings on the disk.

Embeddings are two files: ``NAME.npy`` with a row per image, and ``NAME.tsv`` with a line per row,
which has its number, the name of the image and its label, which is empty if the identity is not
known. Files come from other programs, too: they are read without running code, and what does not
fit together is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from runtime.errors import ConfigError, DataError
from runtime.files import as_data_error, open_regular, read_lines, write_atomically

# NumPy has Python parse the header of a file, which raises errors of many classes, and takes any
# shape and type.
# Version 1.0 of the format; later versions allow longer headers.
_MAGIC = b"\x93NUMPY\x01\x00"
_LONGEST_HEADER = 1 << 12
_HEADER = re.compile(
    rb"\{\s*'descr'\s*:\s*'([<>]f[248])'\s*,\s*'fortran_order'\s*:\s*(True|False)\s*,"
    rb"\s*'shape'\s*:\s*\((\d{1,15}), *(\d{1,15}),?\)\s*,?\s*\}\s*"
)


class Embeddings(NamedTuple):
    """Embeddings of images, read from the two files of ``evaluation.embed``.

    Attributes:
        path: of the rows.
        rows: floats [n, D], mapped into memory.
        names: of the images, n.
        labels: of the images, n, or empty if there is no label in the index.
    """

    path: Path
    rows: NDArray[Any]
    names: list[str]
    labels: list[str]


def map_floats(path: Path) -> Optional[NDArray[Any]]:
    """Map a table [n, width] of float16, float32 or float64; None if the file is something else.

    Raises:
        OSError: the file is missing or not a regular file, or may not be read.
    """
    with open_regular(path) as file:
        magic, length = file.read(len(_MAGIC)), int.from_bytes(file.read(2), "little")
        if magic != _MAGIC or length > _LONGEST_HEADER:
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


def read_embeddings(path: Path) -> Embeddings:
    """Map the rows of a ``.npy`` file, and read the index beside it.

    Raises:
        DataError: a file is missing, broken or no such file, or the two do not fit.
    """
    with as_data_error(f"{path} cannot be read"):
        rows = map_floats(path)
    if rows is None or not rows.size:
        raise DataError(
            f"{path} holds no embeddings, floats [n, D] in NumPy's format (.npy); make them with "
            "python -m evaluation.embed"
        )
    index = path.with_suffix(".tsv")
    names, labels = [], []
    lines = read_lines(index, "an index of embeddings", errors="surrogateescape")
    for number, line in enumerate(lines):
        words = line.split("\t")
        if len(words) != 3 or words[0] != str(number):
            raise DataError(
                f"{index}: line {number + 1} is {line[:80]!r} instead of the number {number}, a "
                "name and a label, with tabs between; write it again"
            )
        names.append(words[1])
        labels.append(words[2])
    if len(names) != len(rows):
        raise DataError(
            f"{index} has {len(names):,} lines, and {path} {len(rows):,} rows; one of them is of "
            "other images"
        )
    return Embeddings(path, rows, names, labels if any(labels) else [])


def check_output(path: Path, option: str, inputs: Iterable[Path] = ()) -> None:
    """Refuse a file that cannot be written, before what takes minutes has been computed for it.

    Makes the folder of the file, if need be.

    Args:
        path: of the file.
        option: that names it.
        inputs: what the command reads, which the file would replace.

    Raises:
        ConfigError: the file is a folder, or one of the inputs.
        DataError: its folder cannot be made, or not be written.
    """
    if os.path.isdir(path):
        raise ConfigError(f"{option} {path} is a folder; name a file")
    for one in inputs:
        with suppress(OSError):
            if os.path.samefile(path, one):
                raise ConfigError(
                    f"{option} {path} would replace what this command reads; give it another name"
                )
    with writing(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise DataError(f"{path} cannot be written: its folder is read-only; choose another one")


def write_output(path: Path, content: bytes, option: str) -> None:
    """Write a file, whole or not at all, and its folder if need be.

    Raises:
        DataError: it cannot be written.
    """
    with writing(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)


def writing(path: Path, option: str) -> AbstractContextManager[None]:
    """Raise ``DataError`` for a file or folder that cannot be written within."""
    return as_data_error(f"{path} cannot be written", f"choose another folder with {option}")
