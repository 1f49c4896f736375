"""A folder of images per identity, the usual form of faces that are not packed.

Threads list the folders, since a network disk answers slowly but answers many requests at once;
names are kept as plain strings, since there may be millions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from data.decoding import FILE_ENDINGS
from data.worker_threads import map_in_order, track
from runtime.errors import DataError

# In lower case: of ZIP archives from macOS, of file systems, Windows, Synology and Python.
_NO_CLASSES = frozenset(
    ("__macosx", "lost+found", "$recycle.bin", "system volume information", "@eadir", "#recycle")
    + ("#snapshot", "__pycache__")
)


class Identity(NamedTuple):
    """The name of an identity's folder and the names of the images in it."""

    name: str
    images: list[str]


def find_identities(folder: Path, min_images: int, workers: int) -> list[Identity]:
    """Return the identities of a folder, sorted by name, each with its images sorted by name.

    Hidden files and the folders that ``is_class`` knows are ignored: programs create them.
    Identities with fewer than ``min_images`` (at least 1) are left out.

    Raises:
        DataError: there is no such folder, or no identity is left.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; name one that holds a folder per identity")
    try:
        with os.scandir(folder) as entries:
            names = sorted(
                entry.name for entry in entries if entry.is_dir() and is_class(entry.name)
            )
        with map_in_order(partial(_list_images, folder), names, workers) as listed:
            identities = list(track(listed, len(names), "listing folders"))
    except OSError as error:
        raise DataError(f"{error.filename} cannot be listed: {error.strerror}") from None
    kept = [identity for identity in identities if len(identity.images) >= min_images]
    if not kept:
        raise DataError(
            f"{folder}: none of its {len(names)} folders holds {min_images} images "
            f"({', '.join(FILE_ENDINGS)}); name the folder above the identities, or lower "
            "--min-images"
        )
    return kept


def find_images(folder: Path, workers: int) -> list[str]:
    """Return the paths of the images in a folder and in its folders, relative to it, sorted.

    Those that begin with a dot are ignored.

    Raises:
        DataError: there is no such folder, or no image.
    """
    try:
        direct = _list_images(folder, ".").images
    except OSError:
        # As listing its folders fails, too, which is reported.
        direct = []
    try:
        identities = find_identities(folder, 1, workers)
    except DataError:
        if not direct:
            raise
        identities = []
    nested = (f"{found.name}{os.sep}{image}" for found in identities for image in found.images)
    return [*direct, *nested]


def image_paths(folder: Path, identities: Iterable[Identity]) -> list[str]:
    """Return the paths of all images, identity by identity."""
    return [
        f"{folder}{os.sep}{identity.name}{os.sep}{image}"
        for identity in identities
        for image in identity.images
    ]


def split_holdout(
    identities: Sequence[Identity], every: int
) -> tuple[list[Identity], list[Identity]]:
    """Return the identities to train on, and every ``every``-th, which is held out."""
    training = [identity for number, identity in enumerate(identities, 1) if number % every]
    return training, list(identities[every - 1 :: every])


def split_evenly(identities: Sequence[Identity], parts: int) -> list[int]:
    """Return how many identities, one after another, go into each of some parts, at least one.

    The parts have about as many images each.
    """
    assert 0 < parts <= len(identities)
    total = sum(len(identity.images) for identity in identities)
    counts, images = [0], 0
    for number, identity in enumerate(identities):
        left = len(identities) - number
        wanted = total * len(counts) / parts
        is_full = images + len(identity.images) / 2 > wanted or left == parts - len(counts)
        if counts[-1] and len(counts) < parts and is_full:
            counts.append(0)
        counts[-1] += 1
        images += len(identity.images)
    return counts


def is_image(name: str) -> bool:
    """Return True if a file is an image that is used, by its name."""
    return name.lower().endswith(FILE_ENDINGS) and name[0] != "."


def is_class(name: str) -> bool:
    """Return True if a folder may be a class or an identity, by its name.

    Other folders are those that programs create by themselves: hidden ones, and ``_NO_CLASSES``.
    """
    return name[0] != "." and name.lower() not in _NO_CLASSES


def _list_images(folder: Path, name: str) -> Identity:
    names = os.listdir(f"{folder}{os.sep}{name}")
    return Identity(name, sorted(n for n in names if is_image(n)))
