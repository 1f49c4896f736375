"""Embeddings on the disk: ``NAME.npy`` with a row per image, ``NAME.tsv`` with a line per row.

A line has the number of the row, the name of the image and its label, which is empty if the
identity is not known. Files come from other programs, too: they are read without running code, and
what does not fit together is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from numpy.typing import NDArray

from evaluation.float_file import map_floats
from runtime.errors import DataError
from runtime.files import open_regular


class Embeddings(NamedTuple):
    """What two files say.

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
