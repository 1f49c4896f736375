"""The images of a set with their embeddings and labels, class by class.

Everything that is found in a set is found in these. A million embeddings of 512 numbers are 2 GB:
they stay on the disk, and what is read at once are the images of a class, or a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DataError

Rows = NDArray[np.float32]
Numbers = NDArray[np.int64]

_BLOCK = 8192


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
    rows = np.array(rows, np.float32)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return rows


def check_lengths(embeddings: NDArray[Any], what: str) -> None:
    """Refuse embeddings [n, D] of ``what`` that are not finite, or too large for a length.

    Raises:
        DataError: there is one.
    """
    for start in range(0, len(embeddings), _BLOCK):
        with np.errstate(over="ignore", invalid="ignore"):
            rows = np.array(embeddings[start : start + _BLOCK], np.float32)
            has_length = np.isfinite(np.linalg.norm(rows, axis=1))
        if not has_length.all():
            raise DataError(
                f"embedding {start + int(np.argmin(has_length))} of {what} is not finite, or too "
                "large for a length; embed the images again"
            )


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
