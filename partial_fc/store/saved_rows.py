"""The rows of a store as a checkpoint needs them, read without a run and without a change.

The command that verifies and merges checkpoints takes them from here. The file of records has the
rows of the newest update; those that have changed since the checkpoint are taken from the undo
logs. Of these rows their places in the logs are in memory, and of the records as many as are read
at a time.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partial_fc.store.header import INDEX, RECORDS, Header, Origin, StoreFolder, check_number
from partial_fc.store.records import Arrays, Index, Part, Records, Rows, Transfers
from partial_fc.store.undo import blocks, check_index, logs_since
from runtime.files import open_descriptor, open_regular

# Rows that are read at a time.
_ROWS = 1 << 14


class SavedRows:
    """The rows of a store at a checkpoint, to be used with ``with``: no run can use it meanwhile.

    Attributes:
        header: what the store says of itself.
        shapes: the arrays that it has, by name: type, and the shape of a row.
    """

    def __init__(self, folder: Path, origin: Origin, update: int) -> None:
        """Open a store for the rows that the checkpoint of an update needs.

        Raises:
            DataError: it is not here, in use, another one, damaged, or has no such rows any more.
        """
        store = StoreFolder(folder)
        self._folder, self._explained = folder, store.explained
        with ExitStack() as opened, self._explained():
            found = Header.read(folder)
            check_number(found.number if found else None, origin)
            opened.callback(os.close, store.lock(fcntl.LOCK_SH))
            self.header = header = store.read_header()
            self._layout = header.layout
            file = open_descriptor(folder / RECORDS)
            opened.callback(os.close, file)
            with open_regular(folder / INDEX) as index_file:
                # A copy of this process alone, which ``_find_changes`` changes.
                index = Index(np.memmap(index_file, np.uint32, mode="c"))
            self._records = Records(file, index, self._layout, seed=header.seed, salt=header.number)
            # Records stand in the order of their first writes: many are read at a time.
            self._transfers = Transfers()
            opened.callback(self._transfers.close)
            self._find_changes(update, opened)
            self.header.check_attempt(origin, update)
            self._opened = opened.pop_all()
        self.shapes: dict[str, tuple[str, tuple[int, ...]]] = {
            name: (array.dtype.name, array.shape[1:])
            for name, array in self._layout.empty(0).items()
        }

    def __enter__(self) -> SavedRows:
        """Return the rows."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the store to runs."""
        self._opened.close()

    def verify(self) -> int:
        """Read every record that an update has written; returns how many there are.

        Those that a run would put back have been read before. ``DataError``: one is damaged.
        """
        found = 0
        for classes in self._pieces():
            written = classes[self._records.index.checks[classes] != 0]
            self._read(written)
            found += written.size
        return found

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        """Yield the rows of an array from the first class of this store to its last, in parts."""
        for classes in self._pieces():
            yield self._read(classes)[name]

    def _pieces(self) -> Iterator[Rows]:
        for first in range(self.header.first, self.header.last, _ROWS):
            yield np.arange(first, min(first + _ROWS, self.header.last))

    def _read(self, classes: Rows) -> Arrays:
        arrays, sources = self._layout.empty(classes.size), self._sources[classes]
        current, logged = np.flatnonzero(sources == 0), np.flatnonzero(sources)
        with self._explained():
            part = Part(arrays, classes[current], current)
            self._transfers.spread(lambda few: self._records.read(part.some(few)), current.size)
            images = np.empty((logged.size, self._layout.words), np.uint32)
            for image, one in zip(images, classes[logged]):
                log, size = self._logs[self._sources[one] - 1], self._layout.num_bytes
                image[:] = np.frombuffer(os.pread(log, size, int(self._offsets[one])), np.uint32)
            self._records.unpack(images, Part(arrays, classes[logged], logged))
        return arrays

    def _find_changes(self, update: int, opened: ExitStack) -> None:
        """Find the rows that have changed since the checkpoint, in the oldest log that has each."""
        found, checks = logs_since(self._folder, update), self._records.index.checks
        self._logs: list[int] = []
        # Of each class the log that has its row, from 1, and where; pages of zeros take no memory.
        self._sources = np.zeros(self.header.classes, np.int32)
        self._offsets = np.zeros(self.header.classes, np.int64)
        for number, (_, path) in enumerate(found, start=1):
            self._logs.append(open_descriptor(path))
            opened.callback(os.close, self._logs[-1])
            for block in blocks(path, self._layout.words, self.header.classes):
                self._records.check(block.classes, block.checks, block.images)
                # A row that had never been written is in no log.
                self._sources[block.new] = checks[block.new] = 0
                self._sources[block.classes], checks[block.classes] = number, block.checks
                places = np.arange(block.classes.size) * self._layout.num_bytes
                self._offsets[block.classes] = block.start + places
        check_index(found, update, self._records.index, (self.header.first, self.header.last))
