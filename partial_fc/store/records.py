"""Rows in a file: all numbers of a class side by side, so that a sampled row is one read.

A record (``records.bin``) holds the center, the optimizer's states that are as wide, and those that
are one number. The checksum is multilinear (Carter and Wegman, 1981; Lemire and Kaser, "Strongly
Universal String Hashing is Fast", 2014), of the record's words and its class.

The index (``index.bin``) has two words for each class: the checksum of its record and its place in
the file. The checksum is 0 for a class that no update has written: it has no record, its place
means nothing, and its row is its initial center with states of zero. All others have places of
their own, which never change until a store returns to a checkpoint from before the class was
written.

Records stand in the order in which they were first written. A file in the order of classes would
be one of holes: a file system then keeps a list of rows that stand alone, looks for a place for
each, and takes minutes to remove them; as long as the rows that were sampled are few, its writing
takes as many of the processors as the training. The length of the file says where the next places
are. So a process that is killed leaves nothing to be mended, but the places that it has not used.

The kernels read and write with the system's calls and without Python's lock. A disk is fast when it
is asked for many rows at once, so several threads run them; the rows of a thread are its own. One
thread takes reads and writes in the order in which they were asked for, so that a step does not
wait until the rows of the last one, and their images in the undo log, are on the disk, and a read
sees every write that was asked for before it. After an error nothing more is read or written: the
rows that the undo log has are then all that have changed.

Shapes: R rows, D embedding.
"""

from __future__ import annotations

import errno
import fcntl
import os
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partial_fc.initial import draw
from partial_fc.shard import RowState
from runtime.errors import DataError
from runtime.kernels import read_at, unlocked_kernel, write_at

Words = NDArray[np.uint32]
Rows = NDArray[np.int64]

# Classes that are looked at together.
_AT_ONCE = 1 << 20
# Records begin at multiples of a line of the processor's cache, in bytes.
_ALIGNMENT = 64
# Places that a rank takes at a time: rows of a rank stand together, and few are lost in a kill.
_PLACES_AT_ONCE = 4096
# Requests to the disk at a time. They wait in the system, so they are more than the processors.
_THREADS = 16
# Rows that a thread reads at once: for fewer the handing out takes longer, more take memory.
_LEAST_ROWS, _MOST_ROWS = 256, 2048

Arrays = dict[str, NDArray[Any]]
"""Rows in memory, as the head's kernels take them: "centers" [R, D] and the optimizer's states."""
Layout = np.dtype
"""The type of a record: a field for the center, and one for each state."""


def layout_of(embedding: int, states: Mapping[str, RowState]) -> Layout[Any]:
    """Return the layout of records of centers [D] with these states; the wide fields come first."""
    centers = {"centers": RowState("float32", wide=True)}
    fields = dict(sorted({**centers, **states}.items(), key=lambda item: not item[1].wide))
    used = sum(state.num_bytes(1, embedding) for state in fields.values())
    formats = [(state.dtype, state.shape(1, embedding)[1:]) for state in fields.values()]
    size = -(-used // _ALIGNMENT) * _ALIGNMENT
    return np.dtype({"names": [*fields], "formats": formats, "itemsize": size})


def empty(layout: Layout[Any], num_rows: int) -> Arrays:
    """Return arrays for this many rows, with any numbers in them."""
    assert layout.names is not None
    fields = {name: layout[name] for name in layout.names}
    return {name: np.empty((num_rows, *field.shape), field.base) for name, field in fields.items()}


class Part(NamedTuple):
    """Some of the rows in memory.

    Attributes:
        arrays: that memory.
        classes: int64 [R], their class ids.
        places: int64 [R], where each is in the arrays.
    """

    arrays: Arrays
    classes: Rows
    places: Rows

    def some(self, chosen: Any) -> Part:
        """Return the rows that an index into ``classes`` chooses."""
        return Part(self.arrays, self.classes[chosen], self.places[chosen])


class Index:
    """An index in memory, or in a file that is mapped there and that the ranks share.

    Attributes:
        checks: uint32 [classes], the first word of each.
        places: uint32 [classes], the second.
    """

    def __init__(self, words: Words) -> None:
        """Use these words, two for each class."""
        self.checks, self.places = np.asarray(words).reshape(-1, 2).T

    def end(self) -> int:
        """One past the last place that a class has."""
        return int((self.places[self.checks != 0] + np.int64(1)).max(initial=0))

    def checksum(self, first: int, last: int) -> int:
        """CRC-32 of ``checks`` of the classes from ``first`` to before ``last``."""
        checksum, checks = 0, self.checks[first:last]
        for start in range(0, checks.size, _AT_ONCE):
            some = np.ascontiguousarray(checks[start : start + _AT_ONCE])
            checksum = zlib.crc32(some.data, checksum)
        return checksum


class Records:
    """The records of a file that is open, and their index.

    Methods raise ``OSError`` where the system fails, and ``DataError`` where a record is damaged.
    """

    def __init__(
        self, file: int, index: Index, layout: Layout[Any], *, seed: int, salt: int
    ) -> None:
        """Use the open file, whose descriptor this rank alone has, and the index of all classes.

        The seed is that of the initial centers; the salt distinguishes the checksums of this store
        from those of others.
        """
        self._file, self.index, self.layout = file, index, layout
        self.words = layout.itemsize // 4
        # Places at the end of the file that this rank alone has taken.
        self._free = np.empty(0, np.int64)
        self._seed = seed
        self._multipliers = np.random.default_rng((salt, self.words)).integers(
            2**64, size=self.words + 1, dtype=np.uint64
        )
        self._threads = ThreadPoolExecutor(_THREADS, "center-rows")

    def close(self) -> None:
        """End the threads, after what they were given."""
        self._threads.shutdown()

    def _spread(self, action: Callable[[slice], Any], num_rows: int) -> list[Any]:
        """Do something to all rows, some at a time."""
        size = min(max(-(-num_rows // _THREADS), _LEAST_ROWS), _MOST_ROWS)
        starts = range(0, num_rows, size)
        return [*self._threads.map(action, (slice(start, start + size) for start in starts))]

    def read(self, part: Part) -> None:
        """Fill rows in memory from the file, or with initial centers."""
        self._spread(lambda few: self._read_some(part.some(few)), part.classes.size)

    def _read_some(self, part: Part) -> None:
        is_new = self.index.checks[part.classes] == 0
        new, written = part.some(is_new), part.some(~is_new)
        centers = np.empty((new.classes.size, *self.layout["centers"].shape), np.float32)
        draw(new.classes, self._seed, centers)
        for name, array in part.arrays.items():
            array[new.places] = centers if name == "centers" else 0
        self.unpack(self._images(written.classes), written)

    def _make_room(self, classes: Rows) -> None:
        """Give places to those of some classes that were never written."""
        new = classes[self.index.checks[classes] == 0]
        missing = new.size - self._free.size
        if missing > 0:
            count, size = max(missing, _PLACES_AT_ONCE), self.layout.itemsize
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                end = -(-os.fstat(self._file).st_size // size)
                os.ftruncate(self._file, (end + count) * size)
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._free = np.append(self._free, np.arange(end, end + count))
        self.index.places[new], self._free = np.split(self._free, [new.size])

    def write(self, part: Part) -> bool:
        """Write rows to their places; returns True if all numbers are finite."""
        self._make_room(part.classes)
        return all(self._spread(lambda few: self._write_some(part.some(few)), part.classes.size))

    def _write_some(self, part: Part) -> bool:
        images = np.zeros((part.classes.size, self.words), np.uint32)
        records = images.view(self.layout)[:, 0]
        for name, array in part.arrays.items():
            records[name] = array[part.places]
        self.put(part.classes, self._checksums(part.classes, images), images)
        return all(np.isfinite(records[name]).all() for name in part.arrays)

    def images(self, classes: Rows) -> Words:
        """Return the records of classes as they are in the file, [R, words]; checked."""
        parts = self._spread(lambda few: self._images(classes[few]), classes.size)
        return np.concatenate([np.empty((0, self.words), np.uint32), *parts])

    def _images(self, classes: Rows) -> Words:
        images = np.empty((classes.size, self.words), np.uint32)
        places = self.index.places[classes]
        count = _transfer(self._file, images.ctypes.data, places, images, False)
        if count < classes.size:
            # Raises what the system says of it.
            size = self.layout.itemsize
            os.pread(self._file, size, int(places[count]) * size)
        are_intact = self._checksums(classes, images) == self.index.checks[classes]
        are_intact[count:] = False
        if not are_intact.all():
            damaged = classes[np.argmin(are_intact)]
            raise DataError(f"the row of class {damaged} does not match its checksum")
        return images

    def check(self, classes: Rows, checks: Words, images: Words) -> None:
        """Compare images of records, which a log holds, with their checksums."""
        if not np.array_equal(self._checksums(classes, images), checks):
            raise DataError("an undo log holds a damaged record")

    def unpack(self, images: Words, part: Part) -> None:
        """Fill rows in memory from images of their records."""
        records = images.view(self.layout)[:, 0]
        for name, array in part.arrays.items():
            array[part.places] = records[name]

    def put(self, classes: Rows, checks: Words, images: Words) -> None:
        """Write records with these checksums to their places."""
        places, size = self.index.places[classes], self.layout.itemsize
        count = _transfer(self._file, images.ctypes.data, places, images, True)
        # Again by Python's call, which raises what is wrong.
        for place, image in zip(places[count:].tolist(), images[count:]):
            if os.pwrite(self._file, image, place * size) < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.index.checks[classes] = checks

    def _checksums(self, classes: Rows, images: Words) -> Words:
        """Return the checksum of each record, which is not 0."""
        totals = images @ self._multipliers[:-1]
        totals += self._multipliers[-1] * (classes + 1).astype(np.uint64)
        return np.maximum((totals >> np.uint64(32)).astype(np.uint32), np.uint32(1))


@unlocked_kernel
def _transfer(file, address, places, images, writes):  # type: ignore[no-untyped-def]
    """Read or write the records at some places; returns how many, up to the first that fails."""
    size = images.shape[1] * 4
    for row in range(places.size):
        memory, place = address + row * size, np.int64(places[row]) * size
        if writes:
            done = write_at(file, memory, size, place)
        else:
            done = read_at(file, memory, size, place)
        if done != size:
            return row
    return places.size
