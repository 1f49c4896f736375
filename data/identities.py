"""A folder of images per identity, the usual form of faces that are not packed.

Threads list the folders, since a network disk answers slowly but answers many requests at once;
names are kept as plain strings, since there may be millions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional, Union

from data.decoding import BEGINNING_BYTES, FILE_ENDINGS, IMAGE_ENDINGS, FileKind, kind_of
from data.worker_threads import map_in_order, track
from runtime.errors import DataError
from runtime.files import open_regular

# In lower case: of ZIP archives from macOS, of file systems, Windows, Synology and Python.
_NO_CLASSES = frozenset(
    ("__macosx", "lost+found", "$recycle.bin", "system volume information", "@eadir", "#recycle")
    + ("#snapshot", "__pycache__")
)
_REASONS = {
    FileKind.IMAGE: "",
    FileKind.OTHER: "images of formats that are not decoded, such as HEIC and GIF (convert them)",
    FileKind.NONE: "files that are not images",
}

AGAIN = "folders to which several links lead"
"""The reason to leave out a name of a folder that is listed under another one."""
_Place = tuple[int, int]


class Identity(NamedTuple):
    """The name of an identity's folder and the paths of the images within it."""

    name: str
    images: list[str]


class Listing(NamedTuple):
    """The images in a folder and in the folders in it, and what else is there.

    Attributes:
        images: paths within the folder: of those in itself, then of those in each of its folders.
        left_out: the other files, and folders without images, by the reason.
    """

    images: list[str]
    left_out: LeftOut


class LeftOut:
    """Files and folders that are not used.

    Attributes:
        found: by the reason, how many, and the first of them.
    """

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, str]] = {}

    def add(self, reason: str, first: str, count: int = 1) -> None:
        """Count ``count`` of a kind, which ``reason`` names in the plural."""
        before, earlier = self.found.get(reason, (0, first))
        self.found[reason] = before + count, earlier

    def join(self, other: LeftOut, folder: str) -> None:
        """Add those of a folder within this one."""
        for reason, (count, first) in other.found.items():
            self.add(reason, os.path.join(folder, first) if first else folder, count)

    def lines(self, folder: Union[str, Path]) -> list[str]:
        """Return a line for each reason."""
        return [
            f"{folder}: left out {count:,} {reason}, the first is {first}"
            for reason, (count, first) in self.found.items()
        ]


def list_images(folder: Union[str, Path], above: Iterable[_Place] = ()) -> Listing:
    """List the images in a folder, at any depth.

    Files of which the ending says nothing are images if they begin like one. Hidden files, and the
    folders that are none for ``is_class``, are left out: programs create them. A folder to which
    several links lead is listed once.

    Args:
        folder: an existing one.
        above: the places of the folders around it, to which a link in it may lead back.

    Raises:
        OSError: a folder cannot be listed.
    """
    left_out = LeftOut()
    return Listing(list(_walk(str(folder), {*above}, left_out)), left_out)


def place_of(folder: Union[str, Path]) -> _Place:
    """Return the device and the number of a folder, which do not depend on its path."""
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def other_names(folder: Union[str, Path], places: Mapping[str, _Place]) -> set[str]:
    """Return the names in a folder that lead to one which has another name there.

    One name of each is none of them: that of a folder rather than of a link.

    Args:
        folder: the one with these names.
        places: those of its folders, by name.
    """
    names: dict[_Place, list[str]] = {}
    for name, place in places.items():
        names.setdefault(place, []).append(name)
    found: set[str] = set()
    for same in names.values():
        if len(same) > 1:
            same.sort(key=lambda name: (os.path.islink(os.path.join(folder, name)), name))
            found.update(same[1:])
    return found


def find_identities(
    folder: Path, min_images: int, workers: int, remarks: Optional[list[str]] = None
) -> list[Identity]:
    """Return the identities of a folder, sorted by name, each with its images.

    Those in folders within the folder of an identity belong to it. Identities with fewer than
    ``min_images`` (at least 1) are left out.

    Args:
        folder: that of the identities' folders.
        min_images: that an identity has to have.
        workers: threads that list folders.
        remarks: gets a line for each kind of files and folders that are left out.

    Raises:
        DataError: there is no such folder, or no identity is left.
    """
    beside, listed, left_out = _list_folders(folder, workers)
    kept, nested, total = [], [], 0
    for identity in listed:
        total += len(identity.images)
        nested += [os.path.join(identity.name, name) for name in identity.images if os.sep in name]
        if len(identity.images) >= min_images:
            kept.append(identity)
        elif identity.images:
            left_out.add(f"identities with fewer than {min_images} images", identity.name)
    if beside:
        left_out.add("images outside of the identities' folders", beside[0], len(beside))
    if not kept:
        raise DataError(
            f"{folder}: none of its {len(listed)} folders holds {min_images} images "
            f"({', '.join(FILE_ENDINGS)}); name the folder above the identities, or lower "
            "--min-images"
        )
    if len(nested) == total:
        raise DataError(
            f"{folder}: all images lie deeper than in its folders, the first is {nested[0]}; name "
            "the folder that holds a folder per identity"
        )
    if nested and remarks is not None:
        remarks.append(
            f"{folder}: {len(nested):,} images in folders within those of identities belong to "
            f"these, the first is {nested[0]}"
        )
    if remarks is not None:
        remarks += left_out.lines(folder)
    return kept


def find_images(folder: Path, workers: int, remarks: Optional[list[str]] = None) -> list[str]:
    """Return the paths of the images in a folder and in its folders, relative to it.

    ``workers`` and ``remarks`` are those of ``find_identities``.

    Raises:
        DataError: there is no such folder, or no image.
    """
    images, listed, left_out = _list_folders(folder, workers)
    images += [os.path.join(found.name, image) for found in listed for image in found.images]
    if not images:
        raise DataError(
            f"{folder}: none of its {len(listed)} folders holds images ({', '.join(FILE_ENDINGS)})"
            ", and neither does itself; name another folder"
        )
    if remarks is not None:
        remarks += left_out.lines(folder)
    return images


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
    return name.lower().endswith(IMAGE_ENDINGS) and name[0] != "."


def is_class(name: str) -> bool:
    """Return True if a folder may be a class or an identity, by its name.

    Other folders are those that programs create by themselves: hidden ones, and ``_NO_CLASSES``.
    """
    return name[0] != "." and name.lower() not in _NO_CLASSES


def is_true(test: Callable[[], bool]) -> bool:
    """Return what ``DirEntry.is_dir`` or ``is_file`` returns; False for a link to itself."""
    try:
        return test()
    except OSError:
        return False


def _list_folders(folder: Path, workers: int) -> tuple[list[str], list[Identity], LeftOut]:
    """Return the images in a folder itself, and its folders, each with its images, by name."""
    if not os.path.isdir(folder):
        raise DataError(f"{folder} is no folder; name one that holds a folder per identity")
    left_out = LeftOut()
    try:
        images, names = _scan(str(folder), "", left_out)
        paths = [f"{folder}{os.sep}{name}" for name in names]
        above = (place_of(folder),)

        def inner(path: str) -> tuple[_Place, Listing]:
            return place_of(path), list_images(path, above)

        with map_in_order(inner, paths, workers) as results:
            placed = list(track(results, len(names), "listing folders"))
    except OSError as error:
        raise DataError(f"{error.filename} cannot be listed: {error.strerror}") from None
    again = other_names(folder, {name: place for name, (place, _) in zip(names, placed)})
    listed = []
    for name, (_, listing) in zip(names, placed):
        if name in again:
            left_out.add(AGAIN, name)
            continue
        left_out.join(listing.left_out, name)
        if not listing.images:
            left_out.add("folders without images", name)
        listed.append(Identity(name, listing.images))
    return images, listed, left_out


def _walk(top: str, seen: set[_Place], left_out: LeftOut) -> Iterator[str]:
    """Yield the paths of the images in a folder, and then of those in each of its folders.

    Skips those in ``seen`` and adds the others: links may lead around forever, or to one folder on
    2^n paths.
    """
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        here = place_of(os.path.join(top, inner))
        if here in seen:
            left_out.add(AGAIN, inner)
            continue
        seen.add(here)
        images, folders = _scan(top, inner, left_out)
        yield from images
        waiting += reversed(folders)


def _scan(top: str, inner: str, left_out: LeftOut) -> tuple[list[str], list[str]]:
    """Return the images and the folders in a folder, sorted, as paths within ``top``."""
    images: list[str] = []
    folders: list[str] = []
    with os.scandir(os.path.join(top, inner)) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        path = os.path.join(inner, entry.name)
        is_folder = is_true(entry.is_dir)
        reason = _reason_of_folder(entry.name) if is_folder else _reason_of_file(entry)
        if reason:
            left_out.add(reason, path)
        else:
            (folders if is_folder else images).append(path)
    return images, folders


def _reason_of_folder(name: str) -> str:
    """Return why a folder is not looked into, in the plural; empty if it is."""
    return "" if is_class(name) else "folders that are hidden or made by programs"


def _reason_of_file(entry: os.DirEntry[str]) -> str:
    """Return why a file is no image, in the plural; empty if it is one."""
    if entry.name.startswith("."):
        return "hidden files"
    if is_image(entry.name):
        return ""
    beginning = b""
    try:
        with open_regular(entry.path, buffering=0) as file:
            beginning = file.read(BEGINNING_BYTES)
    except OSError:
        return "files that cannot be read"
    return _REASONS[kind_of(entry.name, beginning)]
