"""A folder of images per identity or class, the usual form of images that are not packed.

Names are kept as plain strings, since there may be millions.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Union

from data.decoding import BEGINNING_BYTES, FILE_ENDINGS, IMAGE_ENDINGS, is_image
from runtime.errors import DataError
from runtime.files import open_regular

# In lower case: of ZIP archives from macOS, of file systems, Windows, Synology and Python.
_NO_CLASSES = frozenset(
    ("__macosx", "lost+found", "$recycle.bin", "system volume information", "@eadir", "#recycle")
    + ("#snapshot", "__pycache__")
)


_LeftOut = list[tuple[str, str]]
"""Files and folders that are not used: the reason, in the plural, and the path."""
Images = dict[str, list[str]]
"""Paths of images, by their folder."""


def remarks_about(folder: Union[str, Path], left_out: _LeftOut) -> list[str]:
    """Return a line for each reason, with the number of files or folders and the first of them."""
    paths: dict[str, list[str]] = {}
    for reason, path in left_out:
        paths.setdefault(reason, []).append(path)
    return [
        f"{folder}: left out {len(found):,} {reason}, the first is {found[0]}"
        for reason, found in paths.items()
    ]


def list_images(folder: Union[str, Path]) -> tuple[Images, _LeftOut]:
    """Return the images of a folder and of all folders in it, and what is left out.

    By the path of each folder, which is empty for the first; all paths are within that. The images
    in a folder come before those of its folders. Files of which the ending says nothing are images
    if they begin like one. Hidden files, and the folders that are none for ``is_class``, are left
    out: programs create them. A folder to which several links lead is listed once, where the path
    is shortest.

    Raises:
        OSError: a folder cannot be listed.
    """
    found: Images = {}
    left_out: _LeftOut = []
    # Links may lead around forever, or to one folder on 2^n paths.
    seen: set[tuple[int, int]] = set()
    waiting = deque([""])
    while waiting:
        inner = waiting.popleft()
        status = os.stat(os.path.join(folder, inner))
        if (status.st_dev, status.st_ino) in seen:
            left_out.append(("folders to which several links lead", inner))
            continue
        seen.add((status.st_dev, status.st_ino))
        found[inner] = []
        with os.scandir(os.path.join(folder, inner)) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
        for entry in entries:
            path = os.path.join(inner, entry.name)
            if not _is_folder(entry):
                if reason := _reason_of_file(entry):
                    left_out.append((reason, path))
                else:
                    found[inner].append(path)
            elif is_class(entry.name):
                waiting.append(path)
            else:
                left_out.append(("folders that are hidden or made by programs", path))
    return {inner: found[inner] for inner in sorted(found, key=_parts)}, left_out


def find_identities(folder: Path, min_images: int = 1) -> tuple[Images, list[str]]:
    """Return the images of each identity (or class) by its name, and lines about what is left out.

    Their paths are within its folder: also images in folders within that belong to it. Identities
    with fewer than ``min_images`` (at least 1) are left out.

    Raises:
        DataError: there is no such folder, or no identity is left.
    """
    found, left_out = _listed(folder)
    outside, with_images = found.pop(""), [inner for inner, images in found.items() if images]
    identities: Images = {}
    for inner, images in found.items():
        name = _parts(inner)[0]
        identities.setdefault(name, []).extend(image[len(name) + 1 :] for image in images)
    few = f"identities with fewer than {min_images} images"
    for name, images in identities.items():
        if len(images) < min_images:
            left_out.append((few if images else "folders without images", name))
    kept = {name: images for name, images in identities.items() if len(images) >= min_images}
    left_out += [("images outside of the folders", name) for name in outside]
    if not kept:
        lower = ", or lower --min-images" if min_images > 1 else ""
        raise DataError(
            f"{folder}: none of its {len(identities)} folders holds {min_images} images "
            f"({', '.join(FILE_ENDINGS)}); name the folder that holds a folder for each{lower}"
        )
    if all(os.sep in inner for inner in with_images):
        raise DataError(
            f"{folder}: all images lie deeper than in its folders, the first is "
            f"{found[with_images[0]][0]}; name the folder that holds a folder for each"
        )
    return kept, remarks_about(folder, left_out)


def find_images(folder: Path) -> tuple[list[str], list[str]]:
    """Return the paths of the images in a folder, at any depth, and lines about what is left out.

    The paths are relative to the folder; ``list_images`` says the rest.

    Raises:
        DataError: there is no such folder, or no image.
    """
    found, left_out = _listed(folder)
    images = [image for own in found.values() for image in own]
    if not images:
        raise DataError(
            f"{folder} holds no images ({', '.join(FILE_ENDINGS)}); name another folder"
        )
    return images, remarks_about(folder, left_out)


def is_class(name: str) -> bool:
    """Return True if a folder may be a class or an identity, by its name.

    Other folders are those that programs create by themselves: hidden ones, and ``_NO_CLASSES``.
    """
    return name[0] != "." and name.lower() not in _NO_CLASSES


def _listed(folder: Path) -> tuple[Images, _LeftOut]:
    if not os.path.isdir(folder):
        raise DataError(
            f"{folder} is no folder; name one that holds a folder of images per identity or class"
        )
    try:
        return list_images(folder)
    except OSError as error:
        raise DataError(f"{error.filename} cannot be listed: {error.strerror}") from None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return True for a folder, or a link to one; False for a link to itself."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _parts(path: str) -> list[str]:
    return path.split(os.sep)


def _reason_of_file(entry: os.DirEntry[str]) -> str:
    """Return why a file is no image, in the plural; empty if it is one."""
    if entry.name.startswith("."):
        return "hidden files"
    if entry.name.lower().endswith(IMAGE_ENDINGS):
        return ""
    beginning = b""
    try:
        with open_regular(entry.path, buffering=0) as file:
            beginning = file.read(BEGINNING_BYTES)
    except OSError:
        return "files that cannot be read"
    if is_image(entry.name, beginning):
        return ""
    return "files that are not images, or of formats that are not decoded (convert HEIC and GIF)"
