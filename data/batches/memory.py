"""The memory of batches, used again.

The system hands out memory page by page as it is first written to, and takes it back when a large
array is freed: for a batch of faces a page fault for every 4 KiB, which together cost a twentieth
of what decoding costs.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

# What refers to an array that is not in use: the list, a name here, and the argument of the
# function that counts. A view of an array refers to it as well.
_REFERENCES_OF_UNUSED = 3
_MOST_KEPT = 16


class BatchMemory:
    """Arrays of which those that nobody uses any more are handed out again.

    Of arrays that are in use any number may exist, but only some are remembered.
    """

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.uint8]] = []

    def take(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return a uint8 array that holds anything, and that no other code refers to."""
        for array in self._arrays:
            if sys.getrefcount(array) == _REFERENCES_OF_UNUSED and array.shape == shape:
                return array
        taken = np.empty(shape, np.uint8)
        self._arrays = [*self._arrays[1 - _MOST_KEPT :], taken]
        return taken
