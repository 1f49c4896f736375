"""Of each class, the checksum of its record and its place in the file: ``index.bin``.

Two words a class. The checksum is 0 for a class that no update has written: it has no record, and
its place means nothing. All others have places of their own, which never change until a store
returns to a checkpoint from before the class was written.

Records stand in the order in which they were first written. A file in the order of classes would
be one of holes: a file system then keeps a list of rows that stand alone, looks for a place for
each, and takes minutes to remove them; as long as the rows that were sampled are few, its writing
takes as many of the processors as the training. The length of the file says where the next places
are. So a process that is killed leaves nothing to be mended, but the places that it has not used.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Rows = NDArray[np.int64]

# The bytes of a class.
ENTRY = 8
# Classes that are looked at together.
_AT_ONCE = 1 << 20


class Index:
    """An index in memory, or in a file that is mapped there and that the ranks share.

    Attributes:
        entries: uint32 [classes, 2].
        checks: uint32 [classes], the first of these words.
        places: uint32 [classes], the second.
    """

    def __init__(self, entries: Words) -> None:
        """Use these entries, of all classes."""
        self.entries = entries.reshape(-1, 2)
        self.checks, self.places = self.entries[:, 0], self.entries[:, 1]

    def end(self, first: int, last: int) -> int:
        """One past the last place that a class from ``first`` to before ``last`` has."""
        end = 0
        for start in range(first, last, _AT_ONCE):
            some = slice(start, min(start + _AT_ONCE, last))
            places = self.places[some][self.checks[some] != 0]
            end = int((places + np.int64(1)).max(initial=end))
        return end

    def checksum(self, first: int, last: int) -> int:
        """CRC-32 of ``checks`` of the classes from ``first`` to before ``last``."""
        checksum, last = 0, min(last, len(self.checks))
        for start in range(first, last, _AT_ONCE):
            some = self.checks[start : min(start + _AT_ONCE, last)]
            checksum = zlib.crc32(np.ascontiguousarray(some).data, checksum)
        return checksum
