"""The identities of all images of a set, in the mapped caches of its files.

In one array, those of a billion images would take 4 GB of every rank. So the arrays stay as they
are, one for each file, and are mapped one after another where all are looked at once. Where any of
them may be needed, each is mapped when it is first looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Callable, Protocol, Union

import numpy as np
from numpy.typing import NDArray

from data.image_interface import EncodedImages

# Images whose labels are returned at once, a multiple of 8; bounds the memory that it takes.
CHUNK = 1 << 18

Labels = NDArray[np.int32]


class LabelTable:
    """Arrays of labels one after another."""

    def __init__(
        self,
        loaders: Sequence[Callable[[], Labels]],
        lengths: Sequence[int],
        first_classes: Sequence[int],
    ) -> None:
        """Keep what maps the arrays.

        Args:
            loaders: each returns an int32 array, contiguous, with -1 for an unreadable image.
            lengths: of the arrays.
            first_classes: added to the labels of each array.
        """
        assert len(loaders) == len(lengths) == len(first_classes)
        self._loaders, self._first_classes = loaders, first_classes
        self._starts = [0, *accumulate(lengths)]
        self._mapped: dict[int, Labels] = {}

    def __len__(self) -> int:
        """Return the number of images."""
        return self._starts[-1]

    def chunks(self) -> Iterator[tuple[int, Labels]]:
        """Yield all labels in order: the index of the first image, and those of some images."""
        for start, first_class, load in zip(self._starts, self._first_classes, self._loaders):
            labels = load()
            for place in range(0, len(labels), CHUNK):
                yield start + place, _numbered(labels[place : place + CHUNK], first_class)

    def between(self, start: int, stop: int) -> Labels:
        """Return the labels of some images; the arrays that they are in stay mapped."""
        parts = []
        number = bisect_right(self._starts, start) - 1
        while number < len(self._loaders) and self._starts[number] < stop:
            first = self._starts[number]
            if number not in self._mapped:
                self._mapped[number] = self._loaders[number]()
            own = self._mapped[number][max(start - first, 0) : stop - first]
            parts.append(_numbered(own, self._first_classes[number]))
            number += 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _numbered(labels: Labels, first_class: int) -> Labels:
    """Return labels as classes of the whole set; those of unreadable images stay -1."""
    return np.where(labels < 0, labels, labels + np.int32(first_class)) if first_class else labels


class LabeledRecords(EncodedImages, Protocol):
    """Record sets, one or several: images of faces and their identities.

    Attributes:
        path: of the set, for messages.
        num_classes: the number of identities.
        image_size: height and width of the images, in pixels.
    """

    path: Union[Path, str]
    image_size: tuple[int, int]

    def label_table(self) -> LabelTable:
        """Return the identity of every image; -1 where it is unreadable.

        Raises:
            DataError: a label is not one of the classes.
        """
