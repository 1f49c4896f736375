"""Reads a checkpoint: what it holds, whether it is intact, and slices of its arrays.

Arrays are memory maps, so that a rank which takes over a part of what another one has written reads
that part and nothing else. A map beyond the end of a file would kill the process that looks at it;
hence a file is mapped only if it is as long as its manifest says.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DataError
from runtime.state import OWN, REPLICATED, SHARDED
from training.checkpoint import manifest as manifests
from training.checkpoint.manifest import CHUNK, Entry


class Checkpoint:
    """A checkpoint for reading; its arrays are memory maps."""

    def __init__(self, path: Path) -> None:
        """Read the manifest.

        Raises:
            DataError: there is no intact one.
        """
        if not path.is_dir():
            raise DataError(f"{path} does not exist; name the folder of a checkpoint")
        self.path = path
        self.manifest = manifests.read(path)

    def verify(self, rank: int) -> None:
        """Compare the file of a rank with its checksums.

        Raises:
            DataError: it is missing, cut off or changed.
        """
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
        """The arrays whose names begin with ``prefix``."""
        entries = self.manifest.files[0].entries
        return [entry.name for entry in entries if entry.name.startswith(prefix)]

    def __contains__(self, name: str) -> bool:
        return any(entry.name == name for entry in self.manifest.files[0].entries)

    def replicated(self, name: str) -> NDArray[Any]:
        """An array that is the same on all ranks.

        Raises:
            DataError: the file is missing or cut off.
        """
        return self._map(0, self.entry(name))

    def own(self, name: str, rank: int, world_size: int) -> NDArray[Any]:
        """The rank's own array; the mean of all where another number of ranks has written them.

        Raises:
            DataError: a file is missing or cut off.
        """
        self.entry(name)
        if world_size == self.manifest.world_size:
            return self._map(rank, self.manifest.files[rank][name])
        every = [self._map(other, file[name]) for other, file in enumerate(self.manifest.files)]
        mean: NDArray[Any] = np.mean(every, axis=0, dtype=np.float64).astype(every[0].dtype)
        return mean

    def pieces(self, name: str, start: int, stop: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """The rows ``[start, stop)`` of a sharded array, from the files that hold some of them.

        Yields:
            Where a piece begins, counted from ``start``, and its rows, which are read when used.

        Raises:
            DataError: a file is missing or cut off.
        """
        self.entry(name)
        for rank, entry in self.manifest.slices(name):
            first, last = max(start, entry.start), min(stop, entry.stop)
            if first < last:
                rows = self._map(rank, entry)
                yield first - start, rows[first - entry.start : last - entry.start]

    def entry(self, name: str) -> Entry:
        """What the manifest says of an array (on rank 0).

        Raises:
            DataError: it is not there.
        """
        if name not in self:
            raise DataError(
                f"{self.path} lacks {name!r}; it was written by another kind of run or version"
            )
        return self.manifest.files[0][name]

    def _map(self, rank: int, entry: Entry) -> NDArray[Any]:
        if not entry.num_bytes:
            return np.empty(entry.shape, entry.dtype)
        try:
            with self._open(rank) as file:
                return np.memmap(file, entry.dtype, "r", entry.offset, entry.shape)
        except OSError as error:
            raise self._unreadable(rank, error) from None

    def _open(self, rank: int) -> Any:
        """Open a rank's file if its size is right: a map beyond its end would kill the process."""
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


class Section:
    """One part's share of a checkpoint, as one rank reads it; see ``runtime.state.Saved``."""

    def __init__(self, checkpoint: Checkpoint, part: str, rank: int, world_size: int) -> None:
        """Args: the checkpoint, the name of the part, and who reads."""
        self._checkpoint = checkpoint
        self._part = part
        self._rank = rank
        self._world_size = world_size
        values = checkpoint.manifest.values.get(part, {})
        self._values: Mapping[str, Any] = values if isinstance(values, dict) else {}

    def names(self) -> list[str]:
        """The arrays of this part."""
        prefix = f"{self._part}/"
        return [name[len(prefix) :] for name in self._checkpoint.names(prefix)]

    def replicated(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """An array that is the same on all ranks."""
        full = self._check(name, REPLICATED, shape)
        return self._checkpoint.replicated(full)

    def own(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """This rank's array; the mean of all where another number of ranks has written them."""
        full = self._check(name, OWN, shape)
        return self._checkpoint.own(full, self._rank, self._world_size)

    def pieces(
        self, name: str, start: int, stop: int, total: int, row_shape: tuple[int, ...]
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """The rows ``[start, stop)`` of an array of ``total``; see ``Checkpoint.pieces``."""
        full = self._check(name, SHARDED, row_shape)
        rows = self._checkpoint.entry(full).total
        if rows != total:
            raise self._wrong(f"has {rows} rows of {full!r}, not {total}")
        return self._checkpoint.pieces(full, start, stop)

    def count(self, name: str) -> int:
        """A value that is a whole number and not negative."""
        value = self._values.get(name)
        if type(value) is not int or value < 0:
            raise self._wrong(f"has no count {self._part}/{name}")
        return value

    def number(self, name: str) -> float:
        """A value that is a finite number."""
        value = self._values.get(name)
        if not _is_number(value):
            raise self._wrong(f"has no number {self._part}/{name}")
        return float(value)  # type: ignore[arg-type]

    def numbers(self, name: str) -> dict[str, float]:
        """A value that is a table of finite numbers."""
        table = self._values.get(name)
        if not isinstance(table, dict) or not all(map(_is_number, table.values())):
            raise self._wrong(f"has no numbers {self._part}/{name}")
        return {str(key): float(value) for key, value in table.items()}

    def _check(self, name: str, kind: str, shape: tuple[int, ...]) -> str:
        """Refuse an array of another kind or shape; a sharded one's is that of a row."""
        full = f"{self._part}/{name}"
        entry = self._checkpoint.entry(full)
        found = entry.shape[1:] if entry.kind == SHARDED else entry.shape
        if entry.kind != kind or found != tuple(shape):
            raise self._wrong(f"has {full!r} {entry.kind} of shape {found}, not {kind} of {shape}")
        return full

    def _wrong(self, what: str) -> DataError:
        return DataError(f"{self._checkpoint.path} {what}; it belongs to another kind of run")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
