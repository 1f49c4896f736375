"""Offsets and keys of the images of a record file, from its ``.idx`` or from a scan.

MXNet's programs write a line per record into the ``.idx``, its key and its offset, and the key once
more into the record's header. So a file without ``.idx`` has the same keys, in whatever order its
records are: InsightFace's ``face2rec2.py`` writes the images first, then record 0 and the identity
records, other programs record 0 last.

An ``.idx`` that lacks lines would hide images. Records follow each other without gaps, so each has
to end where the next one in the index begins, the first to begin at byte 0 and the last to end with
the file. Of a file with at most ``_ALL_CHECKED`` records all are checked. Of a larger one, whose
records lie on as many pages of a disk, some: where a key is left out, the longest distances between
two offsets, and others at equal distances. Identity-grouped sets announce their number of records,
which is compared as well.

What is found is cached in a file beside the ``.rec``, as are the labels of all images: both are
read from a text file and from many places of a file that may be on a slow disk, and are the same at
every start. Later runs map these arrays into memory, where all ranks of a host share them.

A cache that is missing, of another length than it says, or made from other versions of its source
files is made again, and where the folder cannot be written to, none is used. It is one padded line
of JSON (sizes and times of the source files, length of the array) and the array; nothing in it can
run code. It has no checksum, as the record file itself has none: the caches of a billion images
hold 20 GB, which must not be read at every start. A wrong offset is found when it is used, because
records begin with a magic number.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from data.records.recordio import BrokenRecordError, RecordFile
from runtime.errors import DataError
from runtime.files import StagedFiles, open_regular, read_file

MAX_KEY = 1 << 40
"""The largest key that is believed."""

_WORD_BYTES = 4
_ALL_CHECKED = 1 << 14
# Records that are checked of a larger file.
_SPOT_CHECKS = 1 << 9
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# To be raised whenever the content of a cache changes its meaning or form.
_CACHE_VERSION = 8
# The array begins at a multiple of this number of bytes.
_ALIGNMENT = 64
_LONGEST_HEADER = 1 << 12

_Numbers = NDArray[np.int64]


class RecordIndex:
    """Offsets and keys of a record file's images.

    Attributes:
        offsets: of the images' records in bytes, int64 ``[images]``.
        identity_offsets: of the identity records, int64 ``[identities]``; empty in a flat set.
        keys: of the images, int64 ``[images]``.
    """

    def __init__(self, path: Path, file: RecordFile) -> None:
        """Read the index of an open ``.rec`` file.

        Raises:
            DataError: the index, or the file's first record, cannot be right.
        """
        sources = (path, path.with_suffix(".idx"))
        cache = path.with_suffix(".idx.cache")
        found = cached_array(cache, sources, "<i8", lambda: _build(path, file), _fits_together)
        images, end = int(found[0]), len(found) - int(found[0])
        self.offsets, self.identity_offsets, self.keys = np.split(found[1:], [images, end - 1])

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.offsets)


def _build(path: Path, file: RecordFile) -> _Numbers:
    """Return the number of images, all offsets, and the keys of the images."""
    keys, offsets = _read_keys(path, file)
    images = _find_images(path, file, keys, offsets)
    parts = [len(keys[images])], offsets[images.start :], keys[images]
    return np.concatenate(parts).astype("<i8", copy=False)


def _fits_together(index: _Numbers) -> bool:
    """Return True for a cached index of the right form; wrong offsets are found when used."""
    return len(index) > 0 and 0 < int(index[0]) <= (len(index) - 1) // 2


def _find_images(path: Path, file: RecordFile, keys: _Numbers, offsets: _Numbers) -> slice:
    """Return which records are images; identity records follow them."""
    bounds = _range_at(file, int(offsets[0])) if keys[0] == 0 else None
    if bounds is None:
        if _range_at(file, int(offsets.max())) is not None:
            raise _misfit(path, "ends with identity records, but no record 0 announces them")
        return slice(0, len(keys))
    start, stop = bounds
    # Float32 has rounded keys above 2^24.
    with np.errstate(invalid="ignore"):
        margins = np.spacing(np.array(bounds, np.float32))
    near = range(*np.searchsorted(keys, [start - margins[0], start + margins[0]]).tolist())
    ranges = (place for place in near if _range_at(file, int(offsets[place])) is not None)
    images = slice(1, next(ranges, int(np.searchsorted(keys, start))))
    end = keys[-1] + 1
    ends = np.array([*keys[images.stop : images.stop + 1], end, end])[[0, -1]]
    fits = images.stop > 0 and bool((np.abs(ends - bounds) <= margins).all())
    if fits and images.stop == 1:
        raise DataError(f"{path} holds no images; pack the set again")
    last, *first = offsets[max(images.stop - 1, 0) : images.stop + 1].tolist()
    if not fits or _range_at(file, last) or any(_has_image(file, offset) for offset in first):
        named = f"keys {start:.10g} to {stop:.10g}"
        raise _misfit(path, f"announces identities at {named}, which are not there")
    return images


def _misfit(path: Path, problem: str) -> DataError:
    remedy = "copy it and its .idx again, or delete the .idx to have the .rec scanned"
    return DataError(f"{path} {problem}; {remedy}")


def _has_image(file: RecordFile, offset: int) -> bool:
    """Return True for a record with an image, False for a broken one, too."""
    with contextlib.suppress(BrokenRecordError):
        return len(file.read(offset)[1]) > 0
    return False


def _range_at(file: RecordFile, offset: int) -> Optional[tuple[float, float]]:
    """Return the two labels of a record without an image, None for any other record."""
    with contextlib.suppress(BrokenRecordError):
        labels, payload = file.read(offset)
        if len(labels) == 2 and not len(payload):
            return labels[0], labels[1]
    return None


def _read_keys(path: Path, file: RecordFile) -> tuple[_Numbers, _Numbers]:
    """Return keys and offsets of all records of an open ``.rec``, in the order of the keys."""
    index = path.with_suffix(".idx")
    # A link to nothing and a pipe are refused below, and not passed over.
    has_index = os.path.lexists(index)
    try:
        if not has_index:
            ids, offsets = file.scan()
            order = np.argsort(ids, kind="stable")
            if _are_distinct(ids[order]):
                return ids[order], offsets[order]
            # No program has numbered the records.
            return np.arange(len(offsets)), offsets
        keys, offsets = _parse(index)
        file.read(int(offsets.max()))
    except BrokenRecordError as error:
        raise DataError(
            f"{path}: {error}; the file is truncated, damaged or of another version than its .idx: "
            "copy both again"
        ) from None
    _check_places(index, file, keys, offsets)
    return keys, offsets


def _parse(path: Path) -> tuple[_Numbers, _Numbers]:
    try:
        text = read_file(path).removeprefix(_BYTE_ORDER_MARK).decode("ascii").strip()
        with warnings.catch_warnings():
            # Trailing garbage is no more than a DeprecationWarning to NumPy.
            warnings.simplefilter("error")
            numbers = np.fromstring(text, np.int64, sep=" ")
        keys, offsets = numbers.reshape(-1, 2).T
        # Lines may be empty.
        has_empty = text.count("\n") + 1 != len(keys)
        if not text or (has_empty and {len(line.split()) for line in text.splitlines()} - {0, 2}):
            raise ValueError("a line without key and offset")
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror}") from None
    except (ValueError, DeprecationWarning):
        raise _refusal(path, "is no index (key and offset on each line)") from None
    order = np.argsort(keys, kind="stable")
    keys, offsets = keys[order], offsets[order]
    # NumPy reads what an int64 cannot hold as the largest one, which is no multiple of 4.
    if offsets.min() < 0 or (offsets % _WORD_BYTES).any() or not _are_distinct(keys):
        raise _refusal(path, "holds impossible keys or offsets")
    return keys, offsets


def _refusal(index: Path, problem: str) -> DataError:
    return DataError(f"{index} {problem}; delete it to have the .rec scanned, or copy both again")


def _are_distinct(keys: _Numbers) -> bool:
    """Return True for sorted keys that may be right."""
    return bool(keys[0] >= 0 and keys[-1] <= MAX_KEY and (np.diff(keys) > 0).all())


def _check_places(index: Path, file: RecordFile, keys: _Numbers, offsets: _Numbers) -> None:
    """Raise ``DataError`` if a record does not end where the next one of the index begins."""
    order = np.argsort(offsets, kind="stable")
    starts = offsets[order]
    stops = np.append(starts[1:], len(file) + -len(file) % _WORD_BYTES)
    # Each of records that share bytes would be followed to their common end.
    fits = (
        starts[0] == 0
        and (starts < stops).all()
        and all(
            _end(file, int(starts[place])) in (-1, stops[place])
            for place in _chosen(keys[order], stops - starts).tolist()
        )
    )
    if not fits:
        name = index.with_suffix(".rec").name
        raise _refusal(
            index,
            f"lacks some of the records in {name}, or does not fit it: the {len(keys)} records "
            "that it names do not follow one another",
        )


def _chosen(keys: _Numbers, sizes: _Numbers) -> _Numbers:
    """Return the places of the records to be checked, the last one among them."""
    count, half = len(keys), _SPOT_CHECKS // 2
    if count <= _ALL_CHECKED:
        return np.arange(count)
    jumps = np.flatnonzero(np.diff(keys) != 1)[:_SPOT_CHECKS]
    longest = np.argpartition(sizes, count - half)[count - half :]
    even = np.linspace(0, count - 1, half).astype(np.int64)
    chosen: _Numbers = np.concatenate([jumps, longest, even])
    return chosen


def _end(file: RecordFile, offset: int) -> int:
    """Return where a record ends, -1 if it is broken."""
    with contextlib.suppress(BrokenRecordError):
        return file.end(offset)
    return -1


def cached_array(
    path: Path,
    sources: Sequence[Path],
    dtype: str,
    build: Callable[[], NDArray[Any]],
    is_usable: Callable[[NDArray[Any]], bool],
) -> NDArray[Any]:
    """Return a one-dimensional array, mapped from a cache; without a valid one, it is built.

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
    with contextlib.suppress(OSError):
        write_cache(path, key, array)
    # A mapped array takes no memory of this process.
    mapped = _load(path, key, dtype)
    return array if mapped is None else mapped


def key_of(sources: Sequence[Path]) -> list[Any]:
    """Return what a cache of these files is valid for: sizes and times of their last change."""
    key: list[Any] = [_CACHE_VERSION]
    for path in sources:
        try:
            status = path.stat()
            key.append([status.st_size, status.st_mtime_ns])
        except OSError:
            key.append(None)
    return key


def _load(path: Path, key: list[Any], dtype: str) -> Optional[NDArray[Any]]:
    """Map the array; None if the cache is missing, damaged or has another key."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        with open_regular(path) as file:
            found, length = json.loads(file.readline(_LONGEST_HEADER))
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            array = np.frombuffer(mapped, dtype, offset=file.tell())
        if found == key and len(array) == length:
            return array
    return None


def write_cache(path: Path, key: list[Any], array: NDArray[Any]) -> None:
    """Write a cache, which replaces a file of its name; ``OSError`` if that is not possible."""
    line = json.dumps([key, len(array)]).encode()
    with StagedFiles() as files:
        file = files.open(path)
        file.write(line + b" " * (-(len(line) + 1) % _ALIGNMENT) + b"\n")
        file.write(array.data)
