"""The offsets and labels of a record file, cached in files beside it.

The offsets of a million records are parsed from a text file, the identities read from a hundred
thousand places of a file that may be on a slow disk. Both are the same at every start. So the first
run writes them as plain arrays; later runs map these into memory, where all ranks of a host share
them.

A cache that is missing, damaged, or made from other versions of its source files is made again, and
where the folder cannot be written to, none is used. It is one padded line of JSON (sizes and times
of the source files, types and lengths of the arrays, a checksum), followed by the arrays; nothing
in it can run code.

The caches of a billion images hold 12 GB, which must not be read at every start. So the checksum of
a large one is that of blocks spread over it: it finds a cache that was cut, or not written
completely. A wrong offset is found when it is used, because records begin with a magic number.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Optional

import numpy as np
from numpy.typing import NDArray

from data.fingerprint import block_checksum
from runtime.files import StagedFiles, open_regular

Arrays = dict[str, NDArray[Any]]

_log = logging.getLogger("data")

# To be raised whenever the content of a cache changes its meaning or form.
_VERSION = 4
_DTYPES = ("<i4", "<i8")
# Each array begins at a multiple of this number of bytes.
_ALIGNMENT = 64
_LONGEST_HEADER = 1 << 12
# Larger contents are checked in blocks.
_READ_WHOLE, _BLOCKS = 1 << 20, 16


def cached_arrays(
    path: Path,
    sources: Sequence[Path],
    build: Callable[[], Arrays],
    is_usable: Callable[[Arrays], bool],
) -> Arrays:
    """Return one-dimensional integer arrays, mapped from a cache.

    They are built, and the cache is written, if there is no valid cache.

    Args:
        path: of the cache.
        sources: the files that the arrays are made from; some may be missing.
        build: makes the arrays, of type int32 or int64.
        is_usable: whether arrays from the cache have the right form; a cache may come with a
            stranger's files. A KeyError means no.
    """
    key = key_of(sources)
    found = _load(path, key)
    with contextlib.suppress(KeyError):
        if found is not None and is_usable(found):
            return found
    arrays = build()
    try:
        write_cache(path, key, arrays)
    except OSError as error:
        _log.info(
            "%s cannot be written (%s): each start will read the record file for it again",
            path, error.strerror,
        )  # fmt: skip
        return arrays
    # Mapped arrays take no memory of this process.
    return _load(path, key) or arrays


def key_of(sources: Iterable[Path]) -> list[Any]:
    """Return what a cache of these files is valid for: sizes and times of their last change."""
    return [_VERSION, *map(_stamp, sources)]


def _load(path: Path, key: list[Any]) -> Optional[Arrays]:
    """Map the arrays; None if the cache is missing, damaged or has another key."""
    try:
        with open_regular(path) as file:
            header = json.loads(file.readline(_LONGEST_HEADER))
            if header["key"] != key:
                return None
            start, arrays = file.tell(), header["arrays"]
            size = os.fstat(file.fileno()).st_size - start
            # Not from the map: what is touched there counts as memory of this process.
            if header["checksum"] != _checksum(file, start, size, arrays):
                raise ValueError("its checksum is wrong")
            return _map(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), start, arrays)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        _log.info("%s is damaged and will be made again (%s)", path, error)
        return None


def write_cache(path: Path, key: list[Any], arrays: Arrays) -> None:
    """Write the arrays under a temporary name and rename the file.

    Raises:
        OSError: the folder cannot be written to.
    """
    described = [[name, array.dtype.str, len(array)] for name, array in arrays.items()]
    with StagedFiles() as files:
        file = files.open(path)
        # The header, which comes first, has the checksum of what follows.
        blank = _header(key, described, "0" * 8)
        file.write(blank)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).view(np.uint8).data)
            file.write(bytes(-array.nbytes % _ALIGNMENT))
        size = file.tell() - len(blank)
        header = _header(key, described, _checksum(file, len(blank), size, described))
        file.seek(0)
        file.write(header)


def _header(key: list[Any], described: Any, checksum: str) -> bytes:
    """One line of a length that does not depend on the checksum."""
    line = json.dumps({"key": key, "arrays": described, "checksum": checksum}).encode()
    return line + b" " * (-(len(line) + 1) % _ALIGNMENT) + b"\n"


def _stamp(path: Path) -> Optional[list[int]]:
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _checksum(file: BinaryIO, start: int, size: int, described: Any) -> str:
    initial = zlib.crc32(json.dumps([described, size]).encode())
    return f"{block_checksum(file, start, size, _READ_WHOLE, _BLOCKS, initial):08x}"


def _map(mapped: mmap.mmap, start: int, described: Any) -> Arrays:
    """Map the arrays after the header; their bytes are read only when they are used."""
    content = np.frombuffer(mapped, np.uint8)
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
