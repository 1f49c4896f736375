"""Descriptions of training sets, for checkpoints: a run that goes on notices other images.

A set is described without reading all of it: by the number of its images, by a fingerprint of its
files, and by the classes and checksums of some images. Paths are no part of that, so a set that was
moved is the same. Where the fingerprint differs and there are more images than before, those that
were described are looked for: at their places, as in a set to whose end images were added, and in
their classes, as in a set that was packed anew.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Optional, Protocol

import numpy as np

from data.records.recordio import Payload
from runtime.errors import DataError

_SAMPLE = 64
# Images of a class among which one is looked for.
_LOOKED_AT = 256


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
