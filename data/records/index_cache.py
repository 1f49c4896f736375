"""What is costly to find out about a record file, kept in a file beside it.

The offsets of a million records come out of a text file, the identities out of a hundred thousand
places of a file that may lie on a slow disk. Both are the same at every start, so they are found
once, written down as plain arrays, and mapped into memory from then on, where all ranks of a host
share them.

A cache may be missing, belong to files that have changed since, be damaged, or lie in a folder that
cannot be written to. None of this is the user's business: it is made again, or done without. Its
form is one line of JSON (the files it was made from, the arrays, a checksum), padded, and the
arrays one behind the other; nothing in it can run code.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

_log = logging.getLogger("data")

# Raise it whenever what is kept, or how, changes its meaning.
_VERSION = 1
_DTYPES = ("<u2", "<u4", "<i4", "<i8")
# The arrays begin at multiples of it.
_ALIGNMENT = 64
_LONGEST_HEADER = 1 << 12
_CHUNK = 1 << 18


class IndexCache:
    """One-dimensional integer arrays that are valid as long as some files do not change."""

    def __init__(self, path: Path, sources: Sequence[Path]) -> None:
        """Describe a cache; nothing is read or written.

        Args:
            path: of the cache.
            sources: the files that the arrays are made from; one that is missing counts as such.
        """
        self._path = path
        self._key = [_VERSION, *map(_stamp, sources)]

    def arrays(
        self, build: Callable[[], Arrays], fit: Callable[[Arrays], bool] = lambda arrays: True
    ) -> Arrays:
        """Return the arrays, mapped from the cache, or built and written to it for the next time.

        Args:
            build: makes the arrays; their types are uint16, uint32, int32 or int64.
            fit: whether arrays from the cache are usable; a cache that came with the files may
                have been made by anybody. A KeyError says no.
        """
        found = self._load()
        with contextlib.suppress(KeyError):
            if found is not None and fit(found):
                return found
        arrays = build()
        try:
            self._store(arrays)
        except OSError as error:
            _log.info(
                "%s cannot be written (%s): what would be in it is found anew at each start",
                self._path, error.strerror,
            )  # fmt: skip
            return arrays
        # The mapped arrays take the place of those in this process's memory.
        return self._load() or arrays

    def _load(self) -> Arrays | None:
        """Map the arrays; None where there are none, or none that can be used."""
        try:
            with self._path.open("rb") as file:
                header = json.loads(file.readline(_LONGEST_HEADER))
                if header["key"] != self._key:
                    return None
                start = file.tell()
                if header["checksum"] != _checksum(header["arrays"], _chunks(file)):
                    raise ValueError("its checksum is wrong")
                return _map(file, start, header["arrays"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            _log.info("%s is damaged and will be made again (%s)", self._path, error)
            return None

    def _store(self, arrays: Arrays) -> None:
        """Write the arrays under a temporary name and rename the file."""
        described = [[name, array.dtype.str, len(array)] for name, array in arrays.items()]
        contents = [_padded(array.tobytes()) for array in arrays.values()]
        checksum = _checksum(described, contents)
        header = json.dumps({"key": self._key, "arrays": described, "checksum": checksum})
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        try:
            with partial.open("wb") as file:
                file.write(header.encode() + b" " * (-(len(header) + 1) % _ALIGNMENT) + b"\n")
                file.writelines(contents)
            partial.replace(self._path)
        finally:
            # In a folder that is not there any more, or is no folder, there is nothing to remove.
            with contextlib.suppress(OSError):
                partial.unlink()


def _stamp(path: Path) -> list[int] | None:
    """What tells a file from its later versions: its size and the time of its last change."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(_CHUNK), b"")


def _checksum(described: Any, contents: Iterable[bytes]) -> int:
    checksum = zlib.crc32(json.dumps(described).encode())
    for content in contents:
        checksum = zlib.crc32(content, checksum)
    return checksum


def _map(file: BinaryIO, start: int, described: Any) -> Arrays:
    """Map the arrays behind the header; what the checksum has read is not yet in this memory."""
    content = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    arrays = {}
    for name, dtype, length in described:
        if dtype not in _DTYPES:
            raise ValueError(f"it holds {dtype!r}")
        size = length * np.dtype(dtype).itemsize
        if not 0 <= size <= len(content) - start:
            raise ValueError("it is shorter than it says")
        arrays[name] = content[start : start + size].view(dtype)
        start += size + -size % _ALIGNMENT
    return arrays


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % _ALIGNMENT)
