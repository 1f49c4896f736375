"""Reads a checkpoint: its manifest, its checksums, and slices of its arrays.

Arrays are memory maps: a rank that takes over some rows of another rank's file reads those rows
only. Reading a map beyond the end of its file would kill the process; hence a file is mapped only
if it is as long as its manifest says. Works without MXNet, for the command.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DataError
from training.checkpoint import manifest as manifests
from training.checkpoint.manifest import CHUNK, Entry


class Checkpoint:
    """A checkpoint for reading; its arrays are memory maps.

    Every method raises a ``DataError`` if a file or an array that it needs is missing or cut off.
    """

    def __init__(self, path: Path) -> None:
        """Read the manifest."""
        if not path.is_dir():
            raise DataError(f"{path} does not exist; name the folder of a checkpoint")
        self.path = path
        self.manifest = manifests.read(path)

    def verify(self, rank: int) -> None:
        """Compare the file of a rank with its checksums; ``DataError`` if it has changed."""
        try:
            with self._open(rank) as file:
                for entry in self.manifest.files[rank].entries:
                    file.seek(entry.offset)
                    if _checksum(file, entry.num_bytes) != entry.checksum:
                        raise DataError(
                            f"{file.name}: {entry.name!r} does not match its checksum: "
                            "the checkpoint is broken; use another one"
                        )
        except OSError as error:
            raise self._unreadable(rank, error) from None

    def names(self, prefix: str) -> list[str]:
        """The names of the arrays that begin with ``prefix``."""
        entries = self.manifest.files[0].entries
        return [entry.name for entry in entries if entry.name.startswith(prefix)]

    def entry(self, name: str) -> Entry:
        """What the manifest says of an array, on rank 0."""
        for entry in self.manifest.files[0].entries:
            if entry.name == name:
                return entry
        raise DataError(
            f"{self.path} lacks {name!r}; it was written by another kind of run or version"
        )

    def replicated(self, name: str) -> NDArray[Any]:
        """An array that is the same on all ranks."""
        return self._map(0, self.entry(name))

    def own(self, name: str, rank: int, world_size: int) -> NDArray[Any]:
        """The rank's own array; if another number of ranks has written them, the mean of all."""
        self.entry(name)
        if world_size == self.manifest.world_size:
            return self._map(rank, self.manifest.files[rank][name])
        every = [self._map(other, file[name]) for other, file in enumerate(self.manifest.files)]
        mean: NDArray[Any] = np.mean(every, axis=0, dtype=np.float64).astype(every[0].dtype)
        return mean

    def pieces(self, name: str, start: int, stop: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """The rows ``[start, stop)`` of a sharded array, from the files that hold some of them.

        Yields:
            A piece's first row, counted from ``start``, and its rows, which are read when used.
        """
        self.entry(name)
        for rank, entry in self.manifest.slices(name):
            first, last = max(start, entry.start), min(stop, entry.stop)
            if first < last:
                rows = self._map(rank, entry)
                yield first - start, rows[first - entry.start : last - entry.start]

    def _map(self, rank: int, entry: Entry) -> NDArray[Any]:
        if not entry.num_bytes:
            return np.empty(entry.shape, entry.dtype)
        try:
            with self._open(rank) as file:
                return np.memmap(file, entry.dtype, "r", entry.offset, entry.shape)
        except OSError as error:
            raise self._unreadable(rank, error) from None

    def _open(self, rank: int) -> Any:
        """Open a rank's file if it has the size that the manifest says."""
        path = self.path / manifests.file_name(rank)
        file = path.open("rb")
        size, right = os.fstat(file.fileno()).st_size, self.manifest.files[rank].size
        if size != right:
            file.close()
            raise DataError(
                f"{path} has {size} bytes, its manifest says {right}: "
                "the checkpoint is broken; use another one"
            )
        return file

    def _unreadable(self, rank: int, error: OSError) -> DataError:
        path = self.path / manifests.file_name(rank)
        return DataError(
            f"{path} cannot be read ({error.strerror}): the checkpoint is broken; use another one"
        )


def _checksum(file: Any, size: int) -> int:
    checksum = 0
    while size > 0:
        chunk = file.read(min(size, CHUNK))
        if not chunk:
            break
        checksum = zlib.crc32(chunk, checksum)
        size -= len(chunk)
    return checksum
