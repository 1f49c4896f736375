"""The images of a set with their embeddings and labels, class by class.

Everything that is found in a set is found in these. A million embeddings of 512 numbers are 2 GB:
they stay on the disk, and what is read at once are the images of a class, or a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DataError

Rows = NDArray[np.float32]
Numbers = NDArray[np.int64]

BLOCK = 8192
"""Rows that are read at once."""


class EmbeddedFaces:
    """Embeddings and their classes.

    Attributes:
        embeddings: floats [n, D] of any lengths but zero, possibly mapped into memory.
        labels: int64 [n], the class of each; -1 for one that is in none.
        num_classes: labels are below it.
        present: the classes that have an embedding, ascending.
    """

    def __init__(self, embeddings: NDArray[Any], labels: Numbers, num_classes: int) -> None:
        assert len(embeddings) == len(labels), (len(embeddings), len(labels))
        self.embeddings, self.labels, self.num_classes = embeddings, labels, num_classes
        self._order = np.argsort(labels, kind="stable")
        self._starts = np.searchsorted(labels[self._order], np.arange(num_classes + 1))
        self.present: Numbers = np.flatnonzero(np.diff(self._starts))

    def __len__(self) -> int:
        return len(self.labels)

    def members(self, label: int) -> Numbers:
        """Return the numbers of the embeddings of a class, ascending."""
        members: Numbers = self._order[self._starts[label] : self._starts[label + 1]]
        return members

    def one_of_each(self, classes: Numbers, generator: np.random.Generator) -> Numbers:
        """Return a random embedding of each of some classes that have one."""
        places = generator.random(len(classes)) * np.diff(self._starts)[classes]
        chosen: Numbers = self._order[self._starts[classes] + places.astype(np.int64)]
        return chosen

    def sizes(self) -> Numbers:
        """Return the number of embeddings of each class, int64 [num_classes]."""
        sizes: Numbers = np.diff(self._starts)
        return sizes

    def unit(self, numbers: Any) -> Rows:
        """Return embeddings of length 1, float32; ``numbers`` are a slice or an array."""
        return unit_rows(self.embeddings[numbers])

    def with_labels(self, labels: Numbers) -> EmbeddedFaces:
        """Return the same embeddings in other classes."""
        return EmbeddedFaces(self.embeddings, labels, self.num_classes)


def unit_rows(rows: NDArray[Any]) -> Rows:
    """Return rows of length 1, float32."""
    rows = np.array(rows, np.float32)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return rows


def check_lengths(embeddings: NDArray[Any], what: str) -> None:
    """Refuse embeddings that are not finite, or too large for a length, which makes zeros of them.

    Args:
        embeddings: floats [n, D], possibly mapped into memory.
        what: they are of, for the message.

    Raises:
        DataError: there is one.
    """
    for block in blocks(len(embeddings)):
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.linalg.norm(np.array(embeddings[block], np.float32), axis=1)
        if not np.isfinite(lengths).all():
            number = block.start + int(np.argmin(np.isfinite(lengths)))
            raise DataError(
                f"embedding {number} of {what} is not finite, or too large for a length; embed the "
                "images again"
            )


def blocks(count: int, size: int = BLOCK) -> Iterator[slice]:
    """Yield slices of at most ``size`` that cover ``count``."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
