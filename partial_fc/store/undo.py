"""The undo log of a store: what rows were at the last checkpoints.

    undo-00002000.rank-0001      what rank 1 has overwritten since the checkpoint of update 2,000

Before a row is written for the first time after a checkpoint, its record goes into the log of that
checkpoint, and the log to the disk. So a checkpoint copies nothing: it begins a new log. A store
returns to a checkpoint by putting back what the logs from then on hold, the newest first. That can
be interrupted and done again: the logs stay until all of it is on the disk.

A log is a head and a list of blocks, each a head, the rows that follow, and their records. A head
has a checksum of its own, so that no number in it is believed, and no memory allocated, before it
is known to be right. A process that is killed while it writes a block has not overwritten these
rows; so a block that does not fit into its file was cut off by a kill, and is the last one. The
head of each log says what the index was: if any log was removed, or has lost a block whose rows
were overwritten, the others do not lead back there.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from partial_fc.store.records import Index, Records, Rows, Words
from runtime.errors import DataError
from runtime.files import open_kept, open_regular, write_atomically

_NAME = re.compile(r"undo-(\d{8,})\.rank-(\d{4,})")
# A magic word, CRC-32 of the rest of the head, CRC-32 of the content, two counts. The content of a
# log is the index of the classes from the first count to before the second. That of a block is a
# list of rows: the first count are rows never written before, the second are records.
_HEAD = struct.Struct("<8sIIQQ")
_LOG, _BLOCK = b"PFCUNDO2", b"PFCBLOCK"


class Block(NamedTuple):
    """What some rows were.

    Attributes:
        new: int64 [M], classes whose rows had never been written.
        classes: int64 [R], others.
        checks: uint32 [R], the checksums of their records.
        images: uint32 [R, words], their records.
        start: where these begin in the file of a log that is read.
    """

    new: Rows
    classes: Rows
    checks: Words
    images: Words
    start: int = 0


class UndoLog:
    """The log that is being written, of one rank."""

    def __init__(
        self, folder: Path, update: int, rank: int, index: Index, classes: tuple[int, int]
    ) -> None:
        """Begin a rank's log of the checkpoint of ``update``, in place of an earlier one.

        No rank changes the index meanwhile, in which the store has the ``classes`` from the first
        to before the second.
        """
        self.update = update
        path = folder / f"undo-{update:08d}.rank-{rank:04d}"
        write_atomically(path, _head(_LOG, index.checksum(*classes), *classes))
        self._file = open_kept(path, os.O_WRONLY | os.O_APPEND)

    def append(self, block: Block) -> None:
        """Write a block; ``flush`` before the rows are overwritten."""
        listed = block.new.tobytes() + block.classes.tobytes() + block.checks.tobytes()
        head = _head(_BLOCK, zlib.crc32(listed), block.new.size, block.classes.size)
        for content in (memoryview(head + listed), block.images.reshape(-1).view(np.uint8).data):
            while content:
                content = content[os.write(self._file, content) :]

    def flush(self) -> None:
        """Have the blocks on the disk."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Nothing is written any more."""
        os.close(self._file)


def logs(folder: Path) -> list[tuple[int, Path]]:
    """The logs of all ranks with the updates of their checkpoints, the newest first."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    named = [(int(match[1]), path) for match, path in found if match]
    return sorted(named, key=lambda item: (-item[0], item[1]))


def undone(
    folder: Path, update: int, records: Records, index: Index
) -> Iterator[tuple[Path, Block]]:
    """Return an index to a checkpoint; yields what the logs hold, the newest first.

    Raises:
        DataError: the logs are damaged or incomplete; ``records`` checks theirs.
    """
    found = [(age, path) for age, path in logs(folder) if age >= update]
    if update not in [age for age, _ in found]:
        raise DataError(
            f"it does not reach back to update {update}, only to the checkpoints in the folder of "
            "its run; use a later one"
        )
    for _, path in found:
        for block in blocks(path, records.words, len(index.checks)):
            records.check(block.classes, block.checks, block.images)
            index.checks[block.new] = 0
            index.checks[block.classes] = block.checks
            yield path, block
    for path in (path for age, path in found if age == update):
        with open_regular(path) as file:
            checksum, first, last = _read_head(file, _LOG)
        if index.checksum(first, last) != checksum:
            raise DataError(
                f"{path} does not lead back to the rows of its checkpoint: a log was cut off or "
                "removed, or the index is damaged; use another checkpoint"
            )


def blocks(path: Path, words: int, classes: int) -> Iterator[Block]:
    """Read a log of a store with records of this length and this many classes.

    Raises:
        DataError: it is damaged, or of another store.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        _read_head(file, _LOG)
        while size - file.tell() >= _HEAD.size:
            checksum, num_new, num_rows = _read_head(file, _BLOCK)
            start = file.tell() + 8 * num_new + 12 * num_rows
            if start + 4 * words * num_rows > size:
                return
            listed = file.read(start - file.tell())
            if zlib.crc32(listed) != checksum:
                raise _damaged(file)
            images = np.frombuffer(file.read(4 * words * num_rows), np.uint32)
            both = np.frombuffer(listed, np.int64, num_new + num_rows)
            if both.size and not 0 <= both.min() <= both.max() < classes:
                raise DataError(f"{path} is of other classes; use another checkpoint")
            new, rows = np.split(both, [num_new])
            checks = np.frombuffer(listed, np.uint32, num_rows, 8 * (num_new + num_rows))
            yield Block(new, rows, checks, images.reshape(num_rows, words), start)


def _head(magic: bytes, checksum: int, first: int, second: int) -> bytes:
    own = zlib.crc32(struct.pack("<IQQ", checksum, first, second), zlib.crc32(magic))
    return _HEAD.pack(magic, own, checksum, first, second)


def _read_head(file: BinaryIO, magic: bytes) -> tuple[int, int, int]:
    """Return the checksum and the counts of a head; a damaged one is a ``DataError``."""
    head = file.read(_HEAD.size)
    if len(head) == _HEAD.size:
        checksum, first, second = _HEAD.unpack(head)[2:]
        if head == _head(magic, checksum, first, second):
            return checksum, first, second
    raise _damaged(file)


def _damaged(file: BinaryIO) -> DataError:
    return DataError(f"{file.name} is damaged, or of another version; use another checkpoint")
