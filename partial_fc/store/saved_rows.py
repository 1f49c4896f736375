"""The rows of a store as a checkpoint needs them, read without a run and without a change.

The command that verifies and merges checkpoints takes them from here. The file of records has the
rows of the newest update; those that have changed since the checkpoint are taken from the undo
logs. Of these rows their places in the logs are in memory, and of the records as many as are read
at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partial_fc.store import header as headers
from partial_fc.store.header import Header, Origin, explained
from partial_fc.store.records import Arrays, Index, Part, Rows, empty
from partial_fc.store.undo import logs, undone
from runtime.files import open_descriptor, open_regular

# Rows that are read at a time.
_ROWS = 1 << 14


class SavedRows(ExitStack):
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
        super().__init__()
        self._folder = folder
        with ExitStack() as opened, explained(folder):
            headers.check_number(Header.read(folder), origin)
            opened.callback(os.close, headers.locked(folder, to_write=False))
            header = Header.read(folder)
            assert header is not None
            self.header = header
            file = open_descriptor(folder / headers.RECORDS)
            opened.callback(os.close, file)
            with open_regular(folder / headers.INDEX) as index_file:
                # A copy of this process alone, which ``_find_changes`` changes.
                index = Index(np.memmap(index_file, np.uint32, mode="c"))
            self._records = header.records(file, index)
            opened.callback(self._records.close)
            self._find_changes(update, opened)
            self.header.check_attempt(origin, update)
            self.enter_context(opened.pop_all())
        none = empty(self._records.layout, 0)
        self.shapes: dict[str, tuple[str, tuple[int, ...]]] = {
            name: (array.dtype.name, array.shape[1:]) for name, array in none.items()
        }

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
        arrays, sources = empty(self._records.layout, classes.size), self._sources[classes]
        current, logged = np.flatnonzero(sources == 0), np.flatnonzero(sources)
        with explained(self._folder):
            self._records.read(Part(arrays, classes[current], current))
            images = np.empty((logged.size, self._records.words), np.uint32)
            for image, one in zip(images, classes[logged]):
                log = self._logs[self._sources[one] - 1]
                log.seek(self._offsets[one])
                image[:] = np.frombuffer(log.read(image.nbytes), np.uint32)
            self._records.unpack(images, Part(arrays, classes[logged], logged))
        return arrays

    def _find_changes(self, update: int, opened: ExitStack) -> None:
        """Find the rows that have changed since the checkpoint, in the oldest log that has each."""
        paths = [path for _, path in logs(self._folder)]
        self._logs = [opened.enter_context(open_regular(path)) for path in paths]
        # The log that has each class's row, from 1, and the place in it. Zeros take no memory.
        self._sources = np.zeros(self.header.classes, np.int32)
        self._offsets = np.zeros(self.header.classes, np.int64)
        for path, block in undone(self._folder, update, self._records, self._records.index):
            # A row that had never been written is in no log.
            self._sources[block.new] = 0
            self._sources[block.classes] = 1 + paths.index(path)
            places = np.arange(block.classes.size) * self._records.layout.itemsize
            self._offsets[block.classes] = block.start + places
