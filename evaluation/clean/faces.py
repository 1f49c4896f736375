"""The images of a set with their embeddings and labels, class by class; and where these come from.

Everything that is found in a set is found in these. A million embeddings of 512 numbers are 2 GB:
they stay on the disk, and what is read at once are the images of a class, or a block.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.decoding import decode_rgb
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError
from data.verification.bin_file import VerificationSet
from evaluation.features import normalized
from evaluation.files import read_embeddings
from evaluation.search import search
from runtime.errors import DataError

Rows = NDArray[np.float32]
Numbers = NDArray[np.int64]


class EmbeddedFaces:
    """Embeddings and their classes.

    Attributes:
        embeddings: floats [n, D] of any lengths but zero, possibly mapped into memory.
        labels: int64 [n], the class of each; -1 for one that is in none.
        images: int64 [n], the number of each in its record set.
        num_classes: labels are below it.
        sizes: int64 [num_classes], the number of embeddings of each class.
        present: the classes that have an embedding, ascending.
    """

    def __init__(
        self, embeddings: NDArray[Any], labels: Numbers, images: Numbers, num_classes: int
    ) -> None:
        self.embeddings, self.labels, self.images = embeddings, labels, images
        self.num_classes = num_classes
        self._order = np.argsort(labels, kind="stable")
        self._starts = np.searchsorted(labels[self._order], np.arange(num_classes + 1))
        self.sizes: Numbers = np.diff(self._starts)
        self.present: Numbers = np.flatnonzero(self.sizes)

    def members(self, label: int) -> Numbers:
        """Return the numbers of the embeddings of a class, ascending."""
        members: Numbers = self._order[self._starts[label] : self._starts[label + 1]]
        return members

    def unit(self, numbers: Any) -> Rows:
        """Return embeddings of length 1, float32; ``numbers`` are a list or an array."""
        return normalized(np.array(self.embeddings[numbers], np.float32))


Numbered = tuple[Numbers, NDArray[Any]]
"""Numbers [n], and the row [n, D] that each stands for."""


class Match(NamedTuple):
    """The numbers of a probe and of what is near to it, and their cosine."""

    probe: int
    found: int
    cosine: float


def matches_from(gallery: Numbered, probes: Numbered, top: int, least: float) -> list[Match]:
    """Return the matches among the ``top`` of each probe that have the cosine ``least`` or more."""
    cosines, rows = search(gallery[1], probes[1], top)
    probe, place = np.nonzero((cosines >= least) & (rows >= 0))
    columns = probes[0][probe], gallery[0][rows[probe, place]], cosines[probe, place]
    return [Match(*row) for row in zip(*(column.tolist() for column in columns))]


class EmbeddingFile:
    """A file of ``evaluation.embed``, whose rows are found by the path of a set and a key there.

    A file of another version of a set would judge the wrong images, so keys and labels are compared
    with those of the set.
    """

    def __init__(self, path: Path) -> None:
        self._embeddings = read_embeddings(path)
        self._sets: dict[str, dict[str, int]] = {}
        real_path = lru_cache(None)(os.path.realpath)
        for row, name in enumerate(self._embeddings.names):
            written, _, key = name.rpartition(":")
            # A set that was named twice has its rows twice.
            self._sets.setdefault(real_path(written), {}).setdefault(key, row)

    def faces_of(self, records: RecordSet) -> EmbeddedFaces:
        """Return the embeddings of a record set.

        Raises:
            DataError: there are none, or they are of another version of the set.
        """
        keys = (str(records.key(image)) for image in range(len(records)))
        rows, labels = self._find(records.path, keys), records.labels().astype(np.int64)
        images, lost = np.flatnonzero(rows >= 0), np.flatnonzero(rows < 0)
        rows, labels = rows[images], labels[images]
        known = self._embeddings.labels
        is_other = not known or [known[row] for row in rows] != list(map(str, labels))
        if is_other or any(_can_be_embedded(records, image) for image in lost.tolist()):
            raise self._refusal(records.path)
        return EmbeddedFaces(self._rows(rows), labels, images, records.num_classes)

    def rows_of(self, pairs: VerificationSet) -> NDArray[Any]:
        """Return the embeddings of the images of a verification set, floats [2 P, D].

        Raises:
            DataError: some are missing.
        """
        rows = self._find(pairs.path, map(str, range(len(pairs))))
        if (rows < 0).any():
            raise self._refusal(pairs.path)
        return self._rows(rows)

    def _find(self, path: Path, keys: Iterable[str]) -> Numbers:
        """Return the row of each key of a set, -1 for none; refuse rows of other keys."""
        found = self._sets.get(os.path.realpath(path), {})
        rows = np.array([found.get(key, -1) for key in keys])
        if np.count_nonzero(rows >= 0) < len(found):
            raise self._refusal(path)
        return rows

    def _rows(self, numbers: Numbers) -> NDArray[Any]:
        """Return rows, without reading them if they follow each other."""
        is_range = bool((np.diff(numbers) == 1).all())
        chosen = slice(numbers[0], numbers[-1] + 1) if is_range and len(numbers) else numbers
        found: NDArray[Any] = self._embeddings.rows[chosen]
        return found

    def _refusal(self, path: Path) -> DataError:
        return DataError(
            f"{self._embeddings.path} has no embeddings of {path}, those of another version of it, "
            "or not of all its images; embed it again: python -m evaluation.embed, or leave "
            "--features out and give --model"
        )


def _can_be_embedded(records: RecordSet, image: int) -> bool:
    try:
        return decode_rgb(records.image(image)[0]).shape[:2] == records.image_size
    except BrokenRecordError:
        return False
