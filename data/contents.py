"""Descriptions of data, by which other data are noticed without reading all of them.

Hosts that share no file system have copies of a data set of their own. One that is old or truncated
trains on, or fails after hours with an error that names no reason. Record files have a hundred
gigabytes, so a description of a file has the size and a checksum of blocks spread over it: copies
that were made at different times, or not completely, differ in these.

A checkpoint describes the training set, so that a run that goes on notices other images: by their
number, and by a fingerprint of the files. Paths are no part of that, so a set that was moved is the
same.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from data.identities import list_images
from runtime.files import open_regular

MISSING = "missing"
_BLOCK = 4096
_BLOCKS = 64
# Indexes of a few million images are read completely, in some ten milliseconds.
_READ_WHOLE = 1 << 25


def fingerprint(paths: Iterable[Path]) -> dict[str, str]:
    """Describe files, and folders with a folder of images per class.

    Reads at most 32 MB of a file, 64 blocks of a larger one; of a folder all names and 64 images.
    """
    return {str(path): describe_file(path) for path in paths}


def find_other_host(hosts: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """Name the first file of which a host has another copy than most; empty if there is none.

    Args:
        hosts: names and what ``fingerprint`` says, rank 0's first, which counts more among as many.
    """
    for path in dict.fromkeys(path for _, files in hosts for path in files):
        found = [files.get(path, MISSING) for _, files in hosts]
        usual = Counter(found).most_common(1)[0][0]
        for (name, _), description in zip(hosts, found):
            if description != usual:
                other = hosts[found.index(usual)][0]
                return f"{name} has another {path} than {other}: {description}, not {usual}"
    return ""


def describe_file(path: Path) -> str:
    """Describe a file or a folder, without its path; see ``fingerprint``."""
    try:
        if path.is_dir():
            return _describe_folder(path)
        size, checksum = _sample(path)
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"unreadable ({error.strerror})"
    return f"{size:,} bytes, checksum {checksum:08x}"


def _describe_folder(folder: Path) -> str:
    found, _ = list_images(folder)
    classes = [name for name in found if name and os.sep not in name]
    images = [image for inner, own in found.items() if inner for image in own]
    checksum = zlib.crc32("\n".join(images).encode(errors="surrogateescape"))
    for image in images[:: max(1, len(images) // _BLOCKS)]:
        for number in _sample(folder / image):
            checksum = zlib.crc32(b"%d" % number, checksum)
    return f"{len(images):,} images of {len(classes):,} classes, checksum {checksum:08x}"


def _sample(path: Path) -> tuple[int, int]:
    """The size of a file and a checksum of some blocks."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _READ_WHOLE:
            return size, zlib.crc32(file.read())
        checksum = 0
        for number in range(_BLOCKS):
            file.seek((size - _BLOCK) * number // (_BLOCKS - 1))
            checksum = zlib.crc32(file.read(_BLOCK), checksum)
        return size, checksum


class Images(Protocol):
    """Numbered images."""

    def __len__(self) -> int: ...

    def fingerprint(self) -> str:
        """Return what tells the set from others, wherever it is."""


def describe(images: Images) -> dict[str, Any]:
    """Describe a set, in a form that JSON can hold."""
    return {"images": len(images), "fingerprint": images.fingerprint()}
