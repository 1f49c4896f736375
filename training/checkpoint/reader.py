"""The arrays of a checkpoint, read as memory maps.

A rank that takes over some rows of another rank's file reads those rows only. Reading a map beyond
the end of its file would kill the process, so a file is mapped only if it is as long as its
manifest says. Works without MXNet, for the command.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DataError
from runtime.files import open_regular
from training.checkpoint.layout import (
    CHUNK,
    Entry,
    Part,
    file_name,
    lacking,
    read_part,
    rsync,
)


def open_part(path: Path) -> Part:
    """Read what a folder holds of a checkpoint; ``DataError`` if it does not exist or is broken."""
    if not os.path.isdir(path):
        raise DataError(f"{path} does not exist; name the folder of a checkpoint")
    return read_part(path)


class Checkpoint:
    """A checkpoint for reading; its arrays are memory maps.

    Every method raises a ``DataError`` if a file or an array that it needs is missing or cut off.
    """

    def __init__(self, path: Path, part: Optional[Part] = None) -> None:
        """Take some files of a checkpoint, or read its manifest; then all files have to be there.

        Args:
            path: its folder.
            part: of its files those that are needed.
        """
        self.path = path
        self.manifest = part or open_part(path)
        files, hosts = self.manifest.files, self.manifest.hosts
        missing = [rank for rank in range(self.manifest.world_size) if rank not in files]
        if missing and part is None:
            raise DataError(
                f"{path} lacks {lacking(missing, hosts)}; bring them here with "
                f"{rsync([hosts[rank] for rank in missing], path)}"
            )
        complete = (rank for rank, file in files.items() if file.is_complete)
        # Its file has every array of the checkpoint, the replicated ones too.
        self._whole_rank = next(complete, min(files, default=0))

    def verify(self, rank: int) -> None:
        """Compare the file of a rank with its checksums; ``DataError`` if it has changed."""
        with self._opened(rank) as file:
            for entry in self.manifest.files[rank].entries:
                file.seek(entry.offset)
                if _file_checksum(file, entry.num_bytes) != entry.checksum:
                    raise DataError(
                        f"{file.name}: {entry.name!r} does not match its checksum: "
                        "the checkpoint is broken; use another one"
                    )

    def names(self, prefix: str) -> list[str]:
        """The names of the arrays that begin with ``prefix``."""
        entries = self.manifest.files[self._whole_rank].entries
        return [entry.name for entry in entries if entry.name.startswith(prefix)]

    def entry(self, name: str) -> Entry:
        """Return the entry of an array in the manifest, of any rank."""
        for entry in self.manifest.files[self._whole_rank].entries:
            if entry.name == name:
                return entry
        raise DataError(
            f"{self.path} lacks {name!r}; it was written by another kind of run or version"
        )

    def replicated(self, name: str) -> NDArray[Any]:
        """An array that is the same on all ranks."""
        return self._map(self._whole_rank, self.entry(name))

    def own(self, name: str, rank: int, world_size: int) -> NDArray[Any]:
        """The rank's own array; if another number of ranks has written them, the mean of all."""
        self.entry(name)
        if world_size == self.manifest.world_size:
            return self._map(rank, self.manifest.files[rank][name])
        every = [self._map(other, file[name]) for other, file in self.manifest.files.items()]
        mean: NDArray[Any] = np.mean(every, axis=0, dtype=np.float64).astype(every[0].dtype)
        return mean

    def pieces(self, name: str, start: int, stop: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """The rows ``[start, stop)`` of a sharded array, from the files that hold some of them.

        Yields:
            A piece's first row, counted from ``start``, and its rows, which are read when used.
        """
        self.entry(name)
        found = 0
        for rank, file in self.manifest.files.items():
            entry = file[name]
            first, last = max(start, entry.start), min(stop, entry.stop)
            if first < last:
                rows = self._map(rank, entry)
                yield first - start, rows[first - entry.start : last - entry.start]
                found += last - first
        if found != stop - start:
            raise DataError(f"{self.path} lacks rows of {name!r} between {start} and {stop}")

    def _map(self, rank: int, entry: Entry) -> NDArray[Any]:
        if not entry.num_bytes:
            return np.empty(entry.shape, entry.dtype)
        with self._opened(rank) as file:
            return np.memmap(file, entry.dtype, "r", entry.offset, entry.shape)

    @contextmanager
    def _opened(self, rank: int) -> Iterator[Any]:
        """A rank's file, if it has the size that the manifest says."""
        path, expected = self.path / file_name(rank), self.manifest.files[rank].size
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                if size != expected:
                    raise DataError(
                        f"{path} has {size} bytes, its manifest says {expected}: "
                        "the checkpoint is broken; use another one"
                    )
                yield file
        except OSError as error:
            raise DataError(
                f"{path} cannot be read ({error.strerror}): the checkpoint is broken; use another "
                "one"
            ) from None


def _file_checksum(file: Any, size: int) -> int:
    checksum = 0
    while size > 0:
        chunk = file.read(min(size, CHUNK))
        if not chunk:
            break
        checksum = zlib.crc32(chunk, checksum)
        size -= len(chunk)
    return checksum
