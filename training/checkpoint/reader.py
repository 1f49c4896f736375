"""A checkpoint for reading: its arrays, as memory maps, and what its parts remember.

A rank that takes over some rows of another rank's file reads those rows only. Reading a map beyond
the end of its file would kill the process, so a file is mapped only if it is as long as its
manifest says. Works without MXNet, for the command.
"""

from __future__ import annotations

import logging
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DataError
from runtime.files import open_regular
from runtime.state import OWN, REPLICATED, SHARDED, Stateful
from training.checkpoint import files
from training.checkpoint.layout import CHUNK, Entry, broken, file_name, read_part

if TYPE_CHECKING:
    from parallel.world import World

_log = logging.getLogger(__name__)


class Checkpoint:
    """A checkpoint for reading, or what a folder has of it; its arrays are memory maps.

    Every method raises a ``DataError`` if a file or an array that it needs is missing or cut off.

    Attributes:
        manifest: the table of contents.
        entries: all arrays by name, each as one of the ranks has it.
    """

    def __init__(self, path: Path) -> None:
        """Read the manifests in the folder of a checkpoint."""
        self.path = path
        self.manifest = read_part(path)
        files = self.manifest.files
        # Its file has every array of the checkpoint, the replicated ones too.
        self._whole_rank = max(files, key=lambda rank: len(files[rank].entries), default=0)
        whole = files[self._whole_rank].entries if files else ()
        self.entries = {entry.name: entry for entry in whole}

    def verify(self, rank: int) -> None:
        """Compare the file of a rank with its checksums; ``DataError`` if it has changed."""
        with self._opened(rank) as file:
            for entry in self.manifest.files[rank].entries:
                file.seek(entry.offset)
                checksum = 0
                for first in range(0, entry.num_bytes, CHUNK):
                    chunk = file.read(min(CHUNK, entry.num_bytes - first))
                    checksum = zlib.crc32(chunk, checksum)
                if checksum != entry.checksum:
                    raise broken(f"{file.name}: {entry.name!r} does not match its checksum")

    def entry(self, name: str) -> Entry:
        """Return one of ``entries``."""
        if name not in self.entries:
            raise DataError(
                f"{self.path} lacks {name!r}; it was written by another kind of run or version"
            )
        return self.entries[name]

    def replicated(self, name: str) -> NDArray[Any]:
        """An array that is the same on all ranks."""
        return self._map(self._whole_rank, self.entry(name))

    def own(self, name: str, rank: int, world_size: int) -> NDArray[Any]:
        """The rank's own array; if another number of ranks has written them, the mean of all."""
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
        reached = start
        for rank, file in self.manifest.files.items():
            entry = file[name]
            last = min(stop, entry.stop)
            if entry.start <= reached < last:
                rows = self._map(rank, entry)[reached - entry.start : last - entry.start]
                yield reached - start, rows
                reached = last
        if reached != stop:
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
                    raise broken(f"{path} has {size} bytes, its manifest says {expected}")
                yield file
        except OSError as error:
            raise broken(f"{path} cannot be read ({error.strerror})") from None


class SavedRun:
    """The run to resume, for one rank.

    Attributes:
        checkpoint: an intact one.
        run: the folder of the run that resumes.
        values: of all parts, by name.
    """

    def __init__(self, checkpoint: Checkpoint, world: World, run: Path) -> None:
        """Take a checkpoint; all ranks together."""
        self.path = checkpoint.path
        self.checkpoint, self.world, self.run = checkpoint, world, run
        # Rank 0's values for all: on another host the manifest has its first rank's values.
        self.values = world.broadcast_object(checkpoint.manifest.values, "resume.values")

    @property
    def configuration(self) -> Mapping[str, Any]:
        """All options of the run that has written it; none if they are missing."""
        found = self.checkpoint.manifest.about.get("configuration")
        return found if isinstance(found, dict) else {}

    def restore(self, parts: Mapping[str, Stateful]) -> None:
        """Load the state of every part; ``DataError`` if the checkpoint lacks something."""
        for name, part in parts.items():
            part.load_state(SavedPart(self, name))
        before, now = self.checkpoint.manifest.world_size, self.world.size
        _log.info(
            "resumed at update %d from %s%s",
            *(self.checkpoint.manifest.update, self.path),
            "" if before == now else f", written by {before} ranks and re-cut for {now}",
        )


class SavedPart:
    """One part's state in a checkpoint, for one rank; see ``runtime.state.Saved``."""

    def __init__(self, of: SavedRun, part: str) -> None:
        """Take the state of ``part`` of a run."""
        self._part, self._world = part, of.world
        self._checkpoint, self.run = of.checkpoint, of.run
        self.update = of.checkpoint.manifest.update
        self._values = of.values.get(part, {})

    def values_in(self, run: Path) -> list[Mapping[str, Any]]:
        """Return the values of this part in all checkpoints of a run."""
        found = files.candidates(run / files.FOLDER)
        return [part.values.get(self._part, {}) for _, part in found if part.world_size]

    def names(self) -> list[str]:
        """Return the names of the arrays."""
        split = (name.partition("/") for name in self._checkpoint.entries)
        return [name for part, _, name in split if part == self._part]

    def replicated(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return an array that is the same on all ranks."""
        return self._checkpoint.replicated(self._check(name, REPLICATED, shape))

    def own(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return this rank's array, or the mean of all."""
        full = self._check(name, OWN, shape)
        return self._checkpoint.own(full, self._world.rank, self._world.size)

    def pieces(
        self, name: str, start: int, stop: int, total: int, row_shape: tuple[int, ...]
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Return some rows of a sharded array."""
        full = self._check(name, SHARDED, row_shape)
        rows = self._checkpoint.entry(full).total
        if rows != total:
            raise self._wrong(f"has {rows} rows of {full!r}, not {total}")
        return self._checkpoint.pieces(full, start, stop)

    def has(self, name: str) -> bool:
        """Return True if there is a value of this name."""
        return name in self._values

    def count(self, name: str) -> int:
        """Return a whole number that is not negative."""
        return int(self._value(name, "count", lambda value: type(value) is int and value >= 0))

    def number(self, name: str) -> float:
        """Return a finite number."""
        return float(self._value(name, "number", _is_number))

    def numbers(self, name: str) -> dict[str, float]:
        """Return a table of finite numbers."""
        table = self._value(
            *(name, "numbers"),
            lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
        )
        return {str(key): float(value) for key, value in table.items()}

    def _value(self, name: str, kind: str, is_right: Callable[[Any], bool]) -> Any:
        value = self._values.get(name)
        if not is_right(value):
            raise self._wrong(f"has no {kind} {self._part}/{name}")
        return value

    def _check(self, name: str, kind: str, shape: tuple[int, ...]) -> str:
        """The full name of an array of this kind and shape (of a row, if it is sharded)."""
        full = f"{self._part}/{name}"
        entry = self._checkpoint.entry(full)
        if entry.kind != kind or entry.inner != tuple(shape):
            raise self._wrong(
                f"has {full!r} {entry.kind} of shape {entry.inner}, not {kind} of {shape}"
            )
        return full

    def _wrong(self, what: str) -> DataError:
        return DataError(f"{self._checkpoint.path} {what}; it belongs to another kind of run")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
