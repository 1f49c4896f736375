"""The offsets and labels of a record file, cached in files beside it.

The offsets of a million records are parsed from a text file, the identities read from a hundred
thousand places of a file that may be on a slow disk. Both are the same at every start. So the first
run writes each as a plain array; later runs map it into memory, where all ranks of a host share it.

A cache that is missing, of another length than it says, or made from other versions of its source
files is made again, and where the folder cannot be written to, none is used. It is one padded line
of JSON (sizes and times of the source files, length of the array) and the array; nothing in it can
run code. It has no checksum, as the record file itself has none: the caches of a billion images
hold 20 GB, which must not be read at every start. A wrong offset is found when it is used, because
records begin with a magic number.
"""

from __future__ import annotations

import json
import logging
import mmap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from runtime.files import StagedFiles, open_regular

_Array = NDArray[Any]

_log = logging.getLogger("data")

# To be raised whenever the content of a cache changes its meaning or form.
_VERSION = 8
# The array begins at a multiple of this number of bytes.
_ALIGNMENT = 64
_LONGEST_HEADER = 1 << 12


def cached_array(
    path: Path,
    sources: Sequence[Path],
    dtype: str,
    build: Callable[[], _Array],
    is_usable: Callable[[_Array], bool],
) -> _Array:
    """Return a one-dimensional array, mapped from a cache.

    It is built, and the cache is written, if there is no valid cache.

    Args:
        path: of the cache.
        sources: the files that the array is made from; some may be missing.
        dtype: of the array.
        build: makes the array.
        is_usable: whether an array from the cache has the right form; a cache may come with a
            stranger's files.
    """
    key = key_of(sources)
    found = _load(path, key, dtype)
    if found is not None and is_usable(found):
        return found
    array = build()
    try:
        write_cache(path, key, array)
    except OSError as error:
        _log.info(
            "%s cannot be written (%s): each start will read the record file for it again",
            path, error.strerror,
        )  # fmt: skip
        return array
    # A mapped array takes no memory of this process.
    mapped = _load(path, key, dtype)
    return array if mapped is None else mapped


def key_of(sources: Iterable[Path]) -> list[Any]:
    """Return what a cache of these files is valid for: sizes and times of their last change."""
    return [_VERSION, *map(_stamp, sources)]


def _load(path: Path, key: list[Any], dtype: str) -> Optional[_Array]:
    """Map the array; None if the cache is missing, damaged or has another key."""
    try:
        with open_regular(path) as file:
            found, length = json.loads(file.readline(_LONGEST_HEADER))
            if found != key:
                return None
            start = file.tell()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            array = np.frombuffer(mapped, dtype, offset=start)
            if len(array) != length:
                raise ValueError("it has another length than it says")
            return array
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        _log.info("%s is damaged and will be made again (%s)", path, error)
        return None


def write_cache(path: Path, key: list[Any], array: _Array) -> None:
    """Write the array under a temporary name and rename the file.

    Raises:
        OSError: the folder cannot be written to.
    """
    line = json.dumps([key, len(array)]).encode()
    with StagedFiles() as files:
        file = files.open(path)
        file.write(line + b" " * (-(len(line) + 1) % _ALIGNMENT) + b"\n")
        file.write(array.data)


def _stamp(path: Path) -> Optional[list[int]]:
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]
