"""The images of a set with their embeddings and labels, class by class; and where these come from.

Everything that is found in a set is found in these. A million embeddings of 512 numbers are 2 GB:
they stay on the disk, and what is read at once are the images of a class, or a block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.decoding import decode_rgb
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError
from data.verification.bin_file import VerificationSet
from evaluation.embed.files import read_embeddings
from evaluation.features import finite_rows, normalized
from runtime.errors import DataError

Rows = NDArray[np.float32]
Numbers = NDArray[np.int64]

_BLOCK = 8192
_REMEDY = "embed it again: python -m evaluation.embed, or leave --features out and give --model"


class EmbeddedFaces:
    """Embeddings and their classes.

    Attributes:
        embeddings: floats [n, D] of any lengths but zero, possibly mapped into memory.
        labels: int64 [n], the class of each; -1 for one that is in none.
        num_classes: labels are below it.
        sizes: int64 [num_classes], the number of embeddings of each class.
        present: the classes that have an embedding, ascending.
    """

    def __init__(self, embeddings: NDArray[Any], labels: Numbers, num_classes: int) -> None:
        assert len(embeddings) == len(labels), (len(embeddings), len(labels))
        self.embeddings, self.labels, self.num_classes = embeddings, labels, num_classes
        self._order = np.argsort(labels, kind="stable")
        self._starts = np.searchsorted(labels[self._order], np.arange(num_classes + 1))
        self.sizes: Numbers = np.diff(self._starts)
        self.present: Numbers = np.flatnonzero(self.sizes)

    def members(self, label: int) -> Numbers:
        """Return the numbers of the embeddings of a class, ascending."""
        members: Numbers = self._order[self._starts[label] : self._starts[label + 1]]
        return members

    def one_of_each(self, classes: Numbers, generator: np.random.Generator) -> Numbers:
        """Return a random embedding of each of some classes that have one."""
        places = generator.random(len(classes)) * self.sizes[classes]
        chosen: Numbers = self._order[self._starts[classes] + places.astype(np.int64)]
        return chosen

    def unit(self, numbers: Any) -> Rows:
        """Return embeddings of length 1, float32; ``numbers`` are a list or an array."""
        return unit_rows(self.embeddings[numbers])


def unit_rows(rows: NDArray[Any]) -> Rows:
    """Return rows of length 1, float32."""
    return normalized(np.array(rows, np.float32))


def check_lengths(embeddings: NDArray[Any], what: str) -> None:
    """Raise ``DataError`` if an embedding [n, D] of ``what`` is not finite, or has no length."""
    for start in range(0, len(embeddings), _BLOCK):
        finite_rows(embeddings, start, _BLOCK, what)


def nearest(gallery: NDArray[Any], probes: NDArray[Any], top: int) -> Iterator[Any]:
    """Yield the ``top`` nearest rows of the gallery for blocks of probes, as ``search`` does."""
    # Here, because Numba is imported with it, which takes longer than to answer a wrong option.
    from evaluation.search import search

    return search(gallery, probes, min(top, len(gallery)))


class Match(NamedTuple):
    """A probe, what is near to it, and their cosine."""

    probe: int
    found: int
    cosine: float


def matches_from(
    gallery: NDArray[Any], probes: NDArray[Any], top: int, least: float
) -> list[Match]:
    """Return the matches among the ``top`` of each probe that have the cosine ``least`` or more."""
    found = []
    for one in nearest(gallery, probes, top):
        probe, place = np.nonzero((one.cosines >= least) & (one.rows >= 0))
        columns = (one.first + probe, one.rows[probe, place], one.cosines[probe, place])
        found += [Match(*row) for row in zip(*(column.tolist() for column in columns))]
    return found


class EmbeddingFile:
    """A file of ``evaluation.embed``, whose rows are found by the path of a set and a key there.

    A file of another version of a set would judge the wrong images, so keys and labels are compared
    with those of the set.
    """

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
