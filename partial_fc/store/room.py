"""Places for new records, at the end of a file that the ranks of a host extend together.

Records stand in the order in which they were first written. A file in the order of classes would
be one of holes: a file system then keeps a list of rows that stand alone, looks for a place for
each, and takes minutes to remove them; as long as the rows that were sampled are few, its writing
takes as many of the processors as the training.

The length of the file says where the next places are. So a process that is killed leaves nothing to
be mended, but the places that it has not used.
"""

from __future__ import annotations

import fcntl
import os

import numpy as np

from partial_fc.store.index import Rows

# Places that a rank takes at a time: rows of a rank stand together, and few are lost in a kill.
_AT_ONCE = 4096


class Room:
    """The places that one rank has taken."""

    def __init__(self, file: int, record: int) -> None:
        """Extend a file.

        Args:
            file: its descriptor, which this rank alone has opened.
            record: bytes of a record.
        """
        self._file, self._record = file, record
        self._free: Rows = np.empty(0, np.int64)

    def take(self, count: int) -> Rows:
        """Return places [count] that no other record has or gets.

        Raises:
            OSError: the file cannot become as long.
        """
        if count > self._free.size:
            self._extend(max(count - self._free.size, _AT_ONCE))
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def _extend(self, count: int) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            end = -(-os.fstat(self._file).st_size // self._record)
            os.ftruncate(self._file, (end + count) * self._record)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._free = np.concatenate((self._free, np.arange(end, end + count)))
