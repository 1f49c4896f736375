"""The undo log of a store: what rows were at the last checkpoints.

    undo-00002000.rank-0001      what rank 1 has overwritten since the checkpoint of update 2,000

Before a row is written for the first time after a checkpoint, its record goes into the log of that
checkpoint, and the log to the disk. So a checkpoint copies nothing: it begins a new log. A store
returns to a checkpoint by putting back what the logs from then on hold, the newest first. That can
be interrupted and done again: the logs stay until all of it is on the disk.

A log is a list of blocks: which rows follow, with a checksum of that, and their records, of which
each has its own. A process that is killed while it writes a block has not overwritten these rows;
so the last block may be cut off, and no other.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from partial_fc.store.index import Rows, Words
from runtime.errors import DataError
from runtime.files import open_kept, open_regular

_NAME = re.compile(r"undo-(\d{8,})\.rank-(\d{4,})")
# A magic word, CRC-32 of what follows but for the records, rows never written before, and records.
_HEAD = struct.Struct("<8sIxxxxQQ")
_MAGIC = b"PFCUNDO1"


class Block(NamedTuple):
    """What some rows were.

    Attributes:
        new: int64 [M], classes whose rows had never been written.
        classes: int64 [R], others.
        checks: uint32 [R], the checksums of their records.
        images: uint32 [R, words], their records.
    """

    new: Rows
    classes: Rows
    checks: Words
    images: Words


class UndoLog:
    """The log that is being written, of one rank."""

    def __init__(self, folder: Path, update: int, rank: int) -> None:
        """Begin the log of the checkpoint of ``update``.

        Raises:
            OSError: it cannot be made.
        """
        self.update = update
        path = folder / f"undo-{update:08d}.rank-{rank:04d}"
        path.unlink(missing_ok=True)
        self._file = open_kept(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)

    def append(self, block: Block) -> None:
        """Write a block; ``flush`` before the rows are overwritten.

        Raises:
            OSError: the disk is full.
        """
        listed = block.new.tobytes() + block.classes.tobytes() + block.checks.tobytes()
        counts = block.new.size, block.classes.size
        head = _HEAD.pack(_MAGIC, _checksum(counts, listed), *counts)
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


def blocks(path: Path, words: int) -> Iterator[Block]:
    """Read a log.

    Args:
        path: of the log.
        words: the length of a record.

    Raises:
        DataError: it is damaged.
        OSError: it cannot be read.
    """
    return (block for _, block in located_blocks(path, words))


def located_blocks(path: Path, words: int) -> Iterator[tuple[int, Block]]:
    """As ``blocks``, with the places of the records in the file: where those of a block begin."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        while head := file.read(_HEAD.size):
            block, is_damaged = _block(file, head, words)
            if is_damaged and file.tell() < size:
                raise DataError(f"{path} is damaged")
            if block is None:
                return
            yield file.tell() - 4 * block.images.size, block


def _block(file: object, head: bytes, words: int) -> tuple[Optional[Block], bool]:
    """The block behind a head; None if it is cut off, and whether its numbers are damaged."""
    read = file.read  # type: ignore[attr-defined]
    if len(head) < _HEAD.size:
        return None, False
    magic, checksum, num_new, num_rows = _HEAD.unpack(head)
    if magic != _MAGIC or max(num_new, num_rows) > 2**40:
        return None, True
    length = 8 * num_new + 12 * num_rows
    listed = read(length)
    if len(listed) < length:
        return None, False
    if _checksum((num_new, num_rows), listed) != checksum:
        return None, True
    images = read(4 * words * num_rows)
    if len(images) < 4 * words * num_rows:
        return None, False
    ends = np.cumsum([8 * num_new, 8 * num_rows])
    return (
        Block(
            np.frombuffer(listed[: ends[0]], np.int64),
            np.frombuffer(listed[ends[0] : ends[1]], np.int64),
            np.frombuffer(listed[ends[1] :], np.uint32),
            np.frombuffer(images, np.uint32).reshape(num_rows, words),
        ),
        False,
    )


def _checksum(counts: tuple[int, int], listed: bytes) -> int:
    return zlib.crc32(listed, zlib.crc32(struct.pack("<QQ", *counts)))
