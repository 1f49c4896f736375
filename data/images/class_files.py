"""Sets of images whose files say the classes: two record files, or two folders with a folder each.

The form in which a user packs any set of images; ImageNet and CIFAR are read from it alike.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.decoding import FILE_ENDINGS, decode_file
from data.identities import (
    AGAIN,
    LeftOut,
    is_class,
    is_image,
    is_true,
    list_images,
    other_names,
    place_of,
)
from data.images.image_set import DecodedImages, EncodedSet
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError, Payload
from runtime.errors import DataError
from runtime.files import read_file

_OF_PROGRAMS = "folders that programs make for themselves"
# Files of a set whose sizes are compared, not only their names: a network disk takes long for more.
_SIZED = 1 << 14


def open_records(training: Path, validation: Path) -> tuple[DecodedImages, DecodedImages]:
    """Open two record files, as MXNet's ``im2rec`` writes them; the labels are class numbers.

    Classes without an image are named, such as class 0 if labels are numbered from 1.

    Raises:
        DataError: a file is broken, a label is no class, or validation has classes that training
            lacks.
    """
    sets = training_set, validation_set = RecordSet(training), RecordSet(validation)
    labels = [_checked_labels(records) for records in sets]
    if validation_set.num_classes > training_set.num_classes:
        raise DataError(
            f"{validation} has {validation_set.num_classes} classes, {training} only "
            f"{training_set.num_classes}; pack both from one list of classes"
        )
    training_images, validation_images = (
        _readable(DecodedImages(one, left_out=_absent(one, own, training_set.num_classes)))
        for one, own in zip(sets, labels)
    )
    return training_images, validation_images


def first_readable(images: DecodedImages) -> int:
    """Return the number of the first image that can be decoded.

    Raises:
        DataError: there is none.
    """
    for index in range(len(images)):
        try:
            images.decoded(index)
            return index
        except BrokenRecordError as error:
            last = error
    raise DataError(f"{last}; none of the {len(images)} images can be read: copy the set again")


def _readable(images: DecodedImages) -> DecodedImages:
    """Return a set in which at least one image is readable; others are skipped later."""
    first_readable(images)
    return images


def _checked_labels(records: RecordSet) -> NDArray[np.int32]:
    """Look at all labels before the first update, so that every rank refuses a wrong one.

    A record without a label may be broken, and is then skipped later, or its label is not a number.
    """
    labels = records.labels()
    for index in np.flatnonzero(labels < 0).tolist():
        with suppress(BrokenRecordError):
            records.image(index)
    return labels


def _absent(records: RecordSet, labels: NDArray[np.int32], num_classes: int) -> list[str]:
    """Return a line about the classes that no image has, if there are any."""
    present = np.zeros(num_classes, np.bool_)
    present[labels[labels >= 0]] = True
    absent = np.flatnonzero(~present).tolist()
    return [_line_of_absent(records.path, num_classes, absent)] if absent else []


def _line_of_absent(place: Path, num_classes: int, absent: Sequence[object]) -> str:
    return (
        f"{place}: no images of {len(absent)} of the {num_classes} classes that are trained "
        f"({absent[0]}{', …' * (len(absent) > 1)})"
    )


def open_folders(training: Path, validation: Path) -> tuple[DecodedImages, DecodedImages]:
    """Open two folders, each with a folder of images per class; classes are sorted by their names.

    A class is a folder with images; what else is found is left out, and the sets say so.

    Raises:
        DataError: one has no images, or validation has classes that training lacks.
    """
    sets = ClassFolders(training), ClassFolders(validation)
    sets[1].relabel(sets[0])
    training_images, validation_images = (
        _readable(DecodedImages(one, decode_file, one.left_out)) for one in sets
    )
    return training_images, validation_images


class ClassFolders(EncodedSet):
    """The images in a folder per class, in the order of their names.

    Attributes:
        classes: the names of the folders, in the order of their labels.
        left_out: lines that say what is not used, and why.
    """

    def __init__(self, folder: Path) -> None:
        """List the files of a folder per class.

        Raises:
            DataError: there are no images, or a folder cannot be listed.
        """
        self._folder = folder
        self._unused = LeftOut()
        self._empty: list[str] = []
        try:
            images = self._list()
        except OSError as error:
            raise DataError(f"{error.filename} cannot be listed: {error.strerror}") from None
        if not images:
            raise DataError(
                f"{folder} holds no folders with images ({', '.join(FILE_ENDINGS)}); it needs "
                "one folder per class"
            )
        self.classes = list(images)
        self.num_classes = len(self.classes)
        self._files = [
            (folder / name / image, label)
            for label, (name, own) in enumerate(images.items())
            for image in own
        ]
        self.left_out = [
            f"{folder}: left out {reason}: {count} ({first}{', …' * (count > 1)})"
            for reason, (count, first) in self._unused.found.items()
        ]

    def relabel(self, training: ClassFolders) -> None:
        """Take the classes of the set that is trained on in place of the own ones.

        Raises:
            DataError: it has no images of one of these, or not even the folder of an empty one.
        """
        labels = {name: label for label, name in enumerate(training.classes)}
        unknown = {*self.classes, *(set(self._empty) - set(training._empty))} - labels.keys()
        if unknown:
            raise DataError(
                f"{self._folder / min(unknown)} is a class without training images; remove it, or "
                "add them"
            )
        missing = sorted(labels.keys() - set(self.classes))
        if missing:
            self.left_out.append(_line_of_absent(self._folder, len(labels), missing))
        self._files = [(path, labels[self.classes[label]]) for path, label in self._files]
        self.classes, self.num_classes = training.classes, len(labels)

    def _list(self) -> dict[str, list[str]]:
        """Return the images of each class, both sorted by name."""
        found: dict[str, list[str]] = {}
        entries = _entries(self._folder)
        places = {
            name: place_of(self._folder / name) for name, is_folder, _ in entries if is_folder
        }
        again = other_names(self._folder, places)
        for name, is_folder, _ in entries:
            if name in again:
                self._unused.add(AGAIN, name)
            elif not is_folder:
                self._unused.add("files beside the class folders", name)
            elif not is_class(name):
                self._unused.add(_OF_PROGRAMS, name)
            elif images := self._images(name):
                found[name] = images
        return found

    def _images(self, name: str) -> list[str]:
        """Return the names of a class's images; counts what else its folder holds."""
        images = []
        for inner, is_folder, is_file in _entries(self._folder / name):
            path = f"{name}/{inner}"
            if is_folder and is_class(inner):
                self._leave_out_inner(path, name)
            elif is_folder:
                self._unused.add(_OF_PROGRAMS, path)
            elif is_file and is_image(inner):
                images.append(inner)
            else:
                self._unused.add("files that are hidden or no images", path)
        if not images:
            self._unused.add("folders without images", name)
            self._empty.append(name)
        return images

    def _leave_out_inner(self, path: str, name: str) -> None:
        """Count what a folder within that of a class holds."""
        above = map(place_of, (self._folder, self._folder / name))
        images, left_out = list_images(self._folder / path, above)
        if images:
            reason = "images in folders within a class"
            self._unused.add(reason, f"{path}/{images[0]}", len(images))
        self._unused.join(left_out, path)

    def __len__(self) -> int:
        return len(self._files)

    @override
    def image(self, index: int) -> tuple[Payload, int]:
        path, label = self._files[index]
        try:
            return read_file(path), label
        except OSError as error:
            raise BrokenRecordError(f"{path} cannot be read: {error.strerror}") from None

    @override
    def where(self, index: int) -> str:
        return str(self._files[index][0])

    @override
    def fingerprint(self) -> str:
        lines = []
        for path, label in self._files:
            size = 0
            with suppress(OSError):
                size = path.stat().st_size if len(self._files) <= _SIZED else 0
            lines.append(f"{label}/{path.name} {size}")
        checksum = zlib.crc32("\n".join(lines).encode(errors="surrogateescape"))
        return f"{len(self.classes)} folders, checksum {checksum:08x}"


def _entries(folder: Path) -> list[tuple[str, bool, bool]]:
    """Return the names in a folder, sorted, and whether each is a folder and a file, also by link.

    A pipe is neither, and reading it may never end; nor is a link that leads nowhere.
    """
    with os.scandir(folder) as entries:
        return sorted(
            (entry.name, is_true(entry.is_dir), is_true(entry.is_file)) for entry in entries
        )
