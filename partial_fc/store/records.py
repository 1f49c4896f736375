"""Rows in a file: all numbers of a class side by side, so that a sampled row is one read.

A record holds the center, the optimizer's states that are as wide, and those that are one number.
An index says where that of a class is, and its checksum. A class that was never written has none:
its row is its initial center with states of zero. The checksum is multilinear (Carter and Wegman,
1981; Lemire and Kaser, "Strongly Universal String Hashing is Fast", 2014), of the record's words
and its class: a tenth of the time of CRC-32.

The kernels read and write with the system's calls and without Python's lock. A disk is fast when it
is asked for many rows at once, so several threads run them; the rows of a thread are its own.

Shapes: R rows, D embedding, W wide arrays (the centers are the first), N narrow ones.
"""

from __future__ import annotations

import copy
import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partial_fc.initial import draw_row, key_of
from partial_fc.shard import RowState
from partial_fc.store.index import Index, Rows, Words
from runtime.errors import DataError
from runtime.kernels.compiled import exactly_inlined, unlocked_kernel
from runtime.kernels.memory import read_at, write_at

# What records begin at a multiple of, in words: a line of the processor's cache.
_ALIGNMENT = 16
# Places that a rank takes at a time: rows of a rank stand together, and few are lost in a kill.
_PLACES_AT_ONCE = 4096


@dataclass(frozen=True)
class Layout:
    """What a record holds.

    Attributes:
        embedding: D.
        states: of the optimizer, by name.
    """

    embedding: int
    states: Mapping[str, RowState]

    def __post_init__(self) -> None:
        for state in self.states.values():
            assert np.dtype(state.dtype) == (np.float32 if state.wide else np.int32), state

    @property
    def wide(self) -> list[str]:
        """The names of the arrays [.., D], "centers" first."""
        return ["centers", *(name for name, state in self.states.items() if state.wide)]

    @property
    def narrow(self) -> list[str]:
        """The names of the arrays of one number a row."""
        return [name for name, state in self.states.items() if not state.wide]

    @property
    def words(self) -> int:
        """The length of a record, in words of four bytes."""
        used = len(self.wide) * self.embedding + len(self.narrow)
        return -(-used // _ALIGNMENT) * _ALIGNMENT

    @property
    def num_bytes(self) -> int:
        """The length of a record."""
        return 4 * self.words


class Staged:
    """Rows in memory, as the arrays that the head's kernels take.

    Attributes:
        wide: float32 [W, R, D].
        narrow: int32 [N, R].
    """

    def __init__(self, layout: Layout, num_rows: int) -> None:
        """Make arrays for this many rows, with any numbers in them."""
        self._layout = layout
        self.wide = np.empty((len(layout.wide), num_rows, layout.embedding), np.float32)
        self.narrow = np.empty((len(layout.narrow), num_rows), np.int32)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, each contiguous."""
        return {
            **dict(zip(self._layout.wide, self.wide)),
            **dict(zip(self._layout.narrow, self.narrow)),
        }

    def first(self, num_rows: int) -> Staged:
        """The first of these rows, in the same memory."""
        part = copy.copy(self)
        part.wide, part.narrow = self.wide[:, :num_rows], self.narrow[:, :num_rows]
        return part


class Part(NamedTuple):
    """Some of the rows of a stage.

    Attributes:
        staged: the stage.
        classes: int64 [R], their class ids.
        places: int64 [R], where each is in the stage.
    """

    staged: Staged
    classes: Rows
    places: Rows


class Records:
    """The records of a file that is open, and their index.

    Methods raise ``OSError`` where the system fails, and ``DataError`` where a record is damaged.
    """

    def __init__(self, file: int, index: Index, layout: Layout, *, seed: int, salt: int) -> None:
        """Use the open file, whose descriptor this rank alone has, and the index of all classes.

        The seed is that of the initial centers; the salt distinguishes the checksums of this store
        from those of others.
        """
        self._file, self.index, self.layout = file, index, layout
        # Places at the end of the file that this rank alone has taken.
        self._free = np.empty(0, np.int64)
        self._key = key_of(seed)
        self._multipliers = np.random.default_rng((salt, layout.words)).integers(
            2**64, size=layout.words + 1, dtype=np.uint64
        )

    def read(self, part: Part, few: slice) -> None:
        """Fill a few rows of a stage from the file, or with initial centers."""
        failed = _read(*self._arguments(part, few, np.empty(self.layout.words, np.uint32)))
        if failed >= 0:
            self._fail(int(part.classes[few][failed]))

    def make_room(self, classes: Rows) -> None:
        """Give places to those of some classes that were never written, for ``write``."""
        new = classes[self.index.checks[classes] == 0]
        if new.size > self._free.size:
            self._extend(max(new.size - self._free.size, _PLACES_AT_ONCE))
        self.index.places[new], self._free = np.split(self._free, [new.size])

    def _extend(self, count: int) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            end = -(-os.fstat(self._file).st_size // self.layout.num_bytes)
            os.ftruncate(self._file, (end + count) * self.layout.num_bytes)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._free = np.concatenate((self._free, np.arange(end, end + count)))

    def write(self, part: Part, few: slice) -> bool:
        """Write a few rows of a stage to their places; returns True if all numbers are finite."""
        record = np.zeros(self.layout.words, np.uint32)
        failed, is_finite = _write(*self._arguments(part, few, record))
        if failed >= 0:
            self.write_image(int(part.classes[few][failed]), record)
        return bool(is_finite)

    def _arguments(self, part: Part, few: slice, record: Words) -> tuple[Any, ...]:
        """Return the arguments of ``_read`` and ``_write``, with the memory of one record."""
        return (
            (self._file, record.ctypes.data, self._key),
            (self.index.entries, self._multipliers),
            (part.classes[few], part.places[few]),
            (record, record.view(np.float32), record.view(np.int32)),
            part.staged.wide,
            part.staged.narrow,
        )

    def images(self, classes: Rows, images: Words, few: slice) -> None:
        """Copy the records of a few classes as they are in the file into [R, words]; checked."""
        classes, images = classes[few], images[few]
        where = self._file, images.ctypes.data
        failed = _read_images(*where, classes, self.index.entries, self._multipliers, images)
        if failed >= 0:
            self._fail(int(classes[failed]))

    def check(self, classes: Rows, checks: Words, images: Words) -> None:
        """Compare images of records, which a log holds, with their checksums."""
        if not _are_intact(classes, checks, self._multipliers, images):
            raise DataError("an undo log holds a damaged record")

    def take(self, images: Words, part: Part) -> None:
        """Fill rows of a stage from images instead of the file."""
        classes, places, layout = part.classes, part.places, self.layout
        self.check(classes, self.index.checks[classes], images)
        end = len(layout.wide) * layout.embedding
        wide = images[:, :end].view(np.float32).reshape(len(images), -1, layout.embedding)
        part.staged.wide[:, places] = wide.swapaxes(0, 1)
        part.staged.narrow[:, places] = images[:, end:].view(np.int32).T[: len(layout.narrow)]

    def restore(self, classes: Rows, checks: Words, images: Words) -> None:
        """Put records back that ``images`` has given; nothing is written if one is damaged."""
        self.check(classes, checks, images)
        for class_id, check, image in zip(classes, checks, images):
            self.write_image(int(class_id), image)
            self.index.checks[class_id] = check

    def write_image(self, class_id: int, image: Words) -> None:
        """Write a record; by Python's call, which raises what is wrong."""
        view, start = image.view(np.uint8).data, self._start(class_id)
        while view:
            written = os.pwrite(self._file, view, start)
            view, start = view[written:], start + written

    def _fail(self, class_id: int) -> None:
        # Raises what the system says of it.
        os.pread(self._file, self.layout.num_bytes, self._start(class_id))
        raise DataError(f"the row of class {class_id} does not match its checksum")

    def _start(self, class_id: int) -> int:
        return int(self.index.places[class_id]) * self.layout.num_bytes


@exactly_inlined
def _check(words, class_id, multipliers):  # type: ignore[no-untyped-def]
    """The checksum of a record, which is not 0."""
    total = multipliers[words.size] * np.uint64(class_id + 1)
    for i in range(words.size):
        total += multipliers[i] * np.uint64(words[i])
    return max(np.uint32(total >> np.uint64(32)), np.uint32(1))


@unlocked_kernel
def _read(source, checking, rows, record, wide, narrow):  # type: ignore[no-untyped-def]
    """Returns which row has failed, or -1."""
    file, address, key = source
    entries, multipliers = checking
    classes, places = rows
    words, floats, integers = record
    size = words.size * 4
    for row in range(classes.size):
        class_id, place = classes[row], places[row]
        check = entries[class_id, 0]
        if check == 0:
            draw_row(class_id, key, wide[0, place])
            wide[1:, place] = np.float32(0)
            narrow[:, place] = 0
            continue
        if read_at(file, address, size, np.int64(entries[class_id, 1]) * size) != size:
            return row
        if _check(words, class_id, multipliers) != check:
            return row
        start = 0
        for w in range(wide.shape[0]):
            for d in range(wide.shape[2]):
                wide[w, place, d] = floats[start + d]
            start += wide.shape[2]
        for n in range(narrow.shape[0]):
            narrow[n, place] = integers[start + n]
    return -1


@unlocked_kernel
def _write(target, checking, rows, record, wide, narrow):  # type: ignore[no-untyped-def]
    """Returns which row has failed, or -1, and whether all numbers are finite."""
    file, address, _ = target
    entries, multipliers = checking
    classes, places = rows
    words, floats, integers = record
    size = words.size * 4
    largest = np.uint32(0)
    for row in range(classes.size):
        class_id, place = classes[row], places[row]
        start = 0
        for w in range(wide.shape[0]):
            for d in range(wide.shape[2]):
                floats[start + d] = wide[w, place, d]
                largest = max(largest, words[start + d] & np.uint32(0x7FFFFFFF))
            start += wide.shape[2]
        for n in range(narrow.shape[0]):
            integers[start + n] = narrow[n, place]
        check = _check(words, class_id, multipliers)
        written = write_at(file, address, size, np.int64(entries[class_id, 1]) * size)
        entries[class_id, 0] = check
        if written != size:
            return row, True
    return -1, largest < np.uint32(0x7F800000)


@unlocked_kernel
def _read_images(file, address, classes, entries, multipliers, images):  # type: ignore[no-untyped-def]
    size = images.shape[1] * 4
    for row in range(classes.size):
        check, place = entries[classes[row], 0], entries[classes[row], 1]
        if read_at(file, address + row * size, size, np.int64(place) * size) != size:
            return row
        if _check(images[row], classes[row], multipliers) != check:
            return row
    return -1


@unlocked_kernel
def _are_intact(classes, checks, multipliers, images):  # type: ignore[no-untyped-def]
    for row in range(classes.size):
        if _check(images[row], classes[row], multipliers) != checks[row]:
            return False
    return True
