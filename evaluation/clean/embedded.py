"""The embeddings of a record set and of verification sets, found in a file of ``evaluation.embed``.

Its index names each image by the path of its set and its key there. A file of another version of a
set would judge the wrong images, so keys and labels are compared with those of the set.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.decoding import decode_rgb
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError
from data.verification.bin_file import VerificationSet
from evaluation.clean.faces import EmbeddedFaces, Numbers
from evaluation.embed.index import read_embeddings
from runtime.errors import DataError

_REMEDY = "embed it again: python -m evaluation.embed, or leave --features out and give --model"


class EmbeddingFile:
    """A file of embeddings, whose rows are found by set and key."""

    def __init__(self, path: Path) -> None:
        self._embeddings = read_embeddings(path)
        self._sets: dict[Path, tuple[list[int], list[str]]] = {}
        paths: dict[str, Path] = {}
        for row, name in enumerate(self._embeddings.names):
            written, _, key = name.rpartition(":")
            if written not in paths:
                paths[written] = Path(os.path.realpath(written))
            rows, keys = self._sets.setdefault(paths[written], ([], []))
            rows.append(row)
            keys.append(key)

    def faces_of(self, records: RecordSet) -> tuple[EmbeddedFaces, Numbers]:
        """Return the embeddings of a record set, and the number in the set of each.

        Raises:
            DataError: there are none, or they are of another version of the set.
        """
        rows, keys = self._find(records.path)
        known = np.fromiter((records.key(image) for image in range(len(records))), np.int64)
        images: Numbers = np.searchsorted(known, keys)
        labels = records.labels().astype(np.int64)
        if (images >= len(known)).any() or (known[images] != keys).any():
            raise self._other_version(records.path)
        without = np.setdiff1d(np.arange(len(known)), images).tolist()
        if any(_can_be_embedded(records, image) for image in without):
            raise self._other_version(records.path)
        # A file that was given labels by another program may have none.
        if self._embeddings.labels:
            named = [self._embeddings.labels[row] for row in rows.tolist()]
            if named != list(map(str, labels[images].tolist())):
                raise self._other_version(records.path)
        return EmbeddedFaces(self._rows(rows), labels[images], records.num_classes), images

    def rows_of(self, pairs: VerificationSet) -> NDArray[Any]:
        """Return the embeddings of the images of a verification set, floats [2 P, D].

        Raises:
            DataError: some are missing.
        """
        rows, keys = self._find(pairs.path)
        if not np.array_equal(keys, np.arange(len(pairs))):
            raise self._other_version(pairs.path)
        return self._rows(rows)

    def _find(self, path: Path) -> tuple[Numbers, Numbers]:
        found = self._sets.get(Path(os.path.realpath(path)))
        if found is None:
            raise DataError(f"{self._embeddings.path} has no embeddings of {path}; {_REMEDY}")
        rows, keys = found
        if not all(key.isascii() and key.isdecimal() and len(key) < 19 for key in keys):
            raise self._other_version(path)
        # A set that was named twice has its rows twice.
        numbers, first = np.unique(np.array(keys, np.int64), return_index=True)
        return np.array(rows, np.int64)[first], numbers

    def _rows(self, rows: Numbers) -> NDArray[Any]:
        """Return rows, without reading them if they follow each other."""
        first, stop = int(rows[0]), int(rows[-1]) + 1
        is_range = stop - first == len(rows) and (np.diff(rows) == 1).all()
        found: NDArray[Any] = self._embeddings.rows[slice(first, stop) if is_range else rows]
        return found

    def _other_version(self, path: Path) -> DataError:
        return DataError(
            f"{self._embeddings.path} has embeddings of another version of {path}, or not of all "
            f"its images; {_REMEDY}"
        )


def _can_be_embedded(records: RecordSet, image: int) -> bool:
    try:
        return decode_rgb(records.image(image)[0]).shape[:2] == records.image_size
    except BrokenRecordError:
        return False
