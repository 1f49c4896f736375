"""The identities of all images of a set, where they lie: in the mapped caches of its files.

In one array, those of a billion images would take 4 GB of every rank. So the arrays stay as they
are, one for each file, and a table says where each begins; compiled code reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

# Images whose labels are returned at once, a multiple of 8; bounds the memory that it takes.
CHUNK = 1 << 18


class LabelTable:
    """Arrays of labels one after another.

    Attributes:
        starts: of each array among all images, int64 ``[arrays + 1]``; the last is their number.
        first_classes: added to the labels of each array, int64 ``[arrays]``.
        addresses: of the arrays' int32 numbers in memory, uint64 ``[arrays]``; they stay valid as
            long as the table exists.
    """

    def __init__(self, arrays: Sequence[NDArray[np.int32]], first_classes: Sequence[int]) -> None:
        """Args: int32 arrays, contiguous, -1 for an unreadable image; what is added to each."""
        assert len(arrays) == len(first_classes)
        assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in arrays)
        self._arrays = arrays
        self.starts = np.array([0, *accumulate(map(len, arrays))], np.int64)
        self.first_classes = np.array(first_classes, np.int64)
        self.addresses = np.array([array.ctypes.data for array in arrays], np.uint64)

    def __len__(self) -> int:
        """Return the number of images."""
        return int(self.starts[-1])

    def chunks(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield all labels in order: the index of the first image, and those of some images."""
        for start, first_class, array in zip(
            self.starts.tolist(), self.first_classes.tolist(), self._arrays
        ):
            for place in range(0, len(array), CHUNK):
                labels = array[place : place + CHUNK]
                if first_class:
                    labels = np.where(labels < 0, labels, labels + np.int32(first_class))
                yield start + place, labels
