"""Descriptions of data, by which other data are noticed without reading all of them.

Hosts that share no file system have copies of a data set of their own. One that is old or truncated
trains on, or fails after hours with an error that names no reason. Record files have a hundred
gigabytes, so a description of a file has the size and a checksum of blocks spread over it: copies
that were made at different times, or not completely, differ in these.

A checkpoint describes the training set, so that a run that goes on notices other images: by the
number of its images, by a fingerprint of its files, and by the classes and checksums of some
images. Paths are no part of that, so a set that was moved is the same. Where the fingerprint
differs and there are more images than before, those that were described are looked for: at their
places, as in a set to whose end images were added, and in their classes, as in a set that was
packed anew.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Optional, Protocol

import numpy as np

from data.identities import list_images
from data.records.recordio import Payload
from runtime.errors import DataError
from runtime.files import open_regular

MISSING = "missing"
_BLOCK = 4096
_BLOCKS = 64
# Indexes of a few million images are read completely, in some ten milliseconds.
_READ_WHOLE = 1 << 25
# Images that describe a set, and images of a class among which one is looked for.
_SAMPLE, _LOOKED_AT = 64, 256


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
    """Numbered images and their classes."""

    def __len__(self) -> int: ...

    def image(self, index: int) -> tuple[Payload, int]:
        """Return the bytes of an image and its class; a DataError if it cannot be read."""

    def fingerprint(self) -> str:
        """Return what tells the set from others, wherever it is; empty if its images have to."""


def describe(images: Images) -> dict[str, Any]:
    """Describe a set, in a form that JSON can hold."""
    places = np.unique(np.linspace(0, len(images) - 1, _SAMPLE).astype(np.int64)).tolist()
    sample = [[place, *found] for place in places if (found := _image(images, place))]
    return {"images": len(images), "fingerprint": images.fingerprint(), "sample": sample}


def find_difference(
    images: Images, described: Mapping[str, Any], before: Any
) -> Optional[tuple[bool, str]]:
    """Compare a set with an earlier description.

    Args:
        images: the set.
        described: what ``describe`` says of it.
        before: what a checkpoint says of the set of its run.

    Returns:
        True if there are more images, and those of before are among them, and the numbers for
        messages; None if the sets are the same, or the checkpoint says nothing.
    """
    if described == before:
        return None
    try:
        count = int(before["images"])
        sample = [(int(place), int(label), int(check)) for place, label, check in before["sample"]]
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    text = f"{count:,} images there, {len(images):,} here"
    if len(images) > count and sample and all(_has(images, *one) for one in sample):
        return True, text
    return False, text if len(images) < count else f"{text}, of which some are others"


def _image(images: Images, index: int) -> Optional[tuple[int, int]]:
    """The class and the checksum of an image; None for a broken one."""
    try:
        payload, label = images.image(index)
    except DataError:
        return None
    return label, zlib.crc32(payload)


def _has(images: Images, place: int, label: int, checksum: int) -> bool:
    """Return True if a set has an image at its place, or among the first of its class."""
    wanted = label, checksum
    if 0 <= place < len(images) and _image(images, place) == wanted:
        return True
    first = _first_of(images, label)
    found = (_image(images, i) for i in range(first, min(first + _LOOKED_AT, len(images))))
    return wanted in takewhile(lambda one: one is None or one[0] == label, found)


def _first_of(images: Images, label: int) -> int:
    """The first image of a class, in a set in the order of its classes."""
    low, high = 0, len(images)
    while low < high:
        middle = (low + high) // 2
        found = _image(images, middle)
        if found and found[0] < label:
            low = middle + 1
        else:
            high = middle
    return low
