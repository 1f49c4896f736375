"""The frames of a ``.rec`` file: where a record begins and ends, and what its header says.

MXNet's own reader fails on identity-grouped files, because it decodes their empty records, and it
does not say which record is broken. Here records are found by offset in a memory map, so that any
number of threads can read at random, and every inconsistency is a ``BrokenRecordError``.

A record is ``magic, length`` (two little-endian words), the header of MXNet (``IfQQ``: flag, label,
id, id2), ``flag`` float32 labels, and the encoded image, padded to whole words. Content that holds
the magic itself at a word's boundary is cut there into parts, each with a frame of its own; the top
three bits of the length distinguish whole records and first, middle and last parts.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Union

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DataError
from runtime.files import open_regular

Payload = Union[bytes, memoryview]

MAGIC = 0xCED7230A
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_FRAME = struct.Struct("<II")
_HEADER = struct.Struct("<IfQQ")
_LENGTH_BITS = 29
_MAX_LENGTH = (1 << _LENGTH_BITS) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
# A record has another part for each magic in its content, one in 16 GiB of random bytes. Each key
# of an index may name the same record, which is read once for each.
_MAX_PARTS = 1024

FLOAT32_EXACT = 1 << 24
"""Float32, the type of every label in a record file, represents all integers up to this one."""


class BrokenRecordError(DataError):
    """One record cannot be read. The rest of the file may be fine, so a loader may skip it."""


class RecordFile:
    """A memory-mapped ``.rec`` file whose records are found by their offsets.

    Attributes:
        buffer: all of it; parts of it are cheap.
    """

    def __init__(self, path: Path) -> None:
        """Map a file; ``DataError`` if it cannot be opened or is empty."""
        try:
            with open_regular(path) as file:
                self.buffer = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                self._status = _version(os.fstat(file.fileno()))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", error)
            raise DataError(
                f"{path} cannot be read ({reason}); name a complete record file (.rec), or a "
                "folder that holds train.rec; data.pack makes one of a folder of identities"
            ) from None
        if len(self.buffer) < _FRAME.size:
            raise DataError(f"{path} has {len(self.buffer)} bytes, no record; copy the set again")

    def __len__(self) -> int:
        """Return the size of the file in bytes."""
        return len(self.buffer)

    def is_at(self, path: Path) -> bool:
        """Return True if a path still names this file, and it has not changed since."""
        try:
            return _version(path.stat()) == self._status
        except OSError:
            return False

    def read(self, offset: int) -> tuple[tuple[float, ...], Payload]:
        """Return the record at ``offset``: one label or several, and what follows them.

        Raises:
            BrokenRecordError: there is no complete record.
        """
        pieces = [self.buffer[start:stop] for start, stop in self._parts(offset)]
        content = pieces[0] if len(pieces) == 1 else memoryview(_MAGIC_BYTES.join(pieces))
        if len(content) < _HEADER.size:
            raise BrokenRecordError(f"its header has {len(content)} instead of 24 bytes")
        flag, label, _, _ = _HEADER.unpack_from(content)
        body = content[_HEADER.size :]
        if flag == 0:
            return (label,), body
        if 4 * flag > len(body):
            raise BrokenRecordError(f"it announces {flag} labels, more than fit into it")
        # Some sets have a hundred landmarks among the labels; no more than two are used.
        return struct.unpack_from("<f" if flag == 1 else "<ff", body), body[4 * flag :]

    def scan(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Read the frames and headers of the whole file.

        Returns:
            The ids in the records' headers and the records' offsets, int64 ``[records]`` each; the
            id is -1 if the header is incomplete or the number is too large.

        Raises:
            BrokenRecordError: the chain of records breaks before the end of the file.
        """
        ids: list[int] = []
        offsets: list[int] = []
        offset = 0
        while offset < len(self.buffer):
            try:
                part, start, stop = self._part(offset)
            except BrokenRecordError as error:
                raise BrokenRecordError(f"record {len(offsets)}: {error}") from None
            if part in (_WHOLE, _FIRST):
                is_whole = stop - start >= _HEADER.size
                number = _HEADER.unpack_from(self.buffer, start)[2] if is_whole else -1
                ids.append(number if number < 1 << 63 else -1)
                offsets.append(offset)
            offset = _aligned(stop)
        if not offsets:
            raise BrokenRecordError("no record begins in it")
        return np.array(ids, np.int64), np.array(offsets, np.int64)

    def end(self, offset: int) -> int:
        """Return the offset at which the record after the one at ``offset`` begins.

        Raises:
            BrokenRecordError: there is no complete record.
        """
        return _aligned(self._parts(offset)[-1][1])

    def _part(self, offset: int) -> tuple[int, int, int]:
        """Return which part of a record lies at ``offset``, and where its content is."""
        if not 0 <= offset <= len(self.buffer) - _FRAME.size:
            raise BrokenRecordError(f"the file has no room for it at byte {offset}")
        magic, word = _FRAME.unpack_from(self.buffer, offset)
        if magic != MAGIC:
            raise BrokenRecordError(f"no record begins at byte {offset} (wrong magic number)")
        start = offset + _FRAME.size
        stop = start + (word & _MAX_LENGTH)
        if stop > len(self.buffer):
            raise BrokenRecordError(f"it should end at byte {stop}, but the file ends before")
        return word >> _LENGTH_BITS, start, stop

    def _parts(self, offset: int) -> list[tuple[int, int]]:
        """Return where the content of each part of a record starts and stops."""
        part, start, stop = self._part(offset)
        if part not in (_WHOLE, _FIRST):
            raise BrokenRecordError(f"byte {offset} lies in the middle of a record")
        places = [(start, stop)]
        while part not in (_WHOLE, _LAST):
            part, start, stop = self._part(_aligned(stop))
            if part not in (_MIDDLE, _LAST):
                raise BrokenRecordError("its last part is missing")
            places.append((start, stop))
            if len(places) > _MAX_PARTS:
                raise BrokenRecordError(f"it has more than {_MAX_PARTS:,} parts")
        return places


def encode(labels: tuple[float, ...], key: int, payload: Payload) -> bytes:
    """Return a whole record, with frames and padding.

    Args:
        labels: one label for an image, two for the records that hold ranges of keys.
        key: goes into the header's id.
        payload: the encoded image, or nothing.

    Raises:
        DataError: the payload is too large for the format (512 MiB), or has too many parts.
    """
    flag = 0 if len(labels) == 1 else len(labels)
    array = struct.pack(f"<{flag}f", *labels) if flag else b""
    content = _HEADER.pack(flag, 0.0 if flag else labels[0], key, 0) + array + payload
    if len(content) > _MAX_LENGTH:
        raise DataError(f"an image of {len(payload)} bytes is too large for a record; shrink it")
    # Cut at each magic on a word's boundary, so that no reader takes it for a frame.
    words = np.frombuffer(content, "<u4", len(content) // 4)
    stops = (4 * np.flatnonzero(words == MAGIC)).tolist()
    bounds = zip([0, *(stop + 4 for stop in stops)], [*stops, len(content)])
    pieces = [content[start:stop] for start, stop in bounds]
    if len(pieces) > _MAX_PARTS:
        raise DataError(f"an image has {len(pieces):,} parts, more than {_MAX_PARTS:,}; encode it")
    kinds = [_FIRST, *[_MIDDLE] * (len(pieces) - 2), _LAST] if len(pieces) > 1 else [_WHOLE]
    return b"".join(
        _FRAME.pack(MAGIC, kind << _LENGTH_BITS | len(piece)) + piece + bytes(-len(piece) % 4)
        for kind, piece in zip(kinds, pieces)
    )


def _version(status: os.stat_result) -> tuple[int, ...]:
    """Return what a file has in common with no other, and with no later version of itself."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _aligned(offset: int) -> int:
    return offset + -offset % 4
