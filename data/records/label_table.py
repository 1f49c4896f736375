"""The identities of all images of a set, where they lie: in the mapped caches of its files.

In one array, those of a billion images would take 4 GB of every rank. So the arrays stay as they
are, one for each file, and are mapped one after another where all are looked at once. Where any of
them may be needed, a table says where each begins; compiled code reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Callable

import numpy as np
from numpy.typing import NDArray

# Images whose labels are returned at once, a multiple of 8; bounds the memory that it takes.
CHUNK = 1 << 18

Labels = NDArray[np.int32]
CompiledTable = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]
"""For compiled code, of each array: the address of its labels, where it starts among all images,
with their number at the end, and the class that is added to its labels."""


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

    def __len__(self) -> int:
        """Return the number of images."""
        return self._starts[-1]

    def chunks(self) -> Iterator[tuple[int, Labels]]:
        """Yield all labels in order: the index of the first image, and those of some images."""
        for start, first_class, load in zip(self._starts, self._first_classes, self._loaders):
            labels = load()
            for place in range(0, len(labels), CHUNK):
                own = labels[place : place + CHUNK]
                if first_class:
                    own = np.where(own < 0, own, own + np.int32(first_class))
                yield start + place, own

    def mapped(self) -> tuple[Sequence[Labels], CompiledTable]:
        """Map all arrays; they have to exist as long as the addresses in the table are used."""
        arrays = [load() for load in self._loaders]
        assert [len(array) for array in arrays] == np.diff(self._starts).tolist()
        assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in arrays)
        return arrays, (
            np.array([array.ctypes.data for array in arrays], np.uint64),
            np.array(self._starts, np.int64),
            np.array(self._first_classes, np.int64),
        )
