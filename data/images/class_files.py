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
from data.identities import is_class, is_image
from data.images.image_set import DecodedImages, EncodedSet
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError, Payload
from runtime.errors import DataError

_EMPTY = "folders without images"
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
        # Names, by the reason.
        self._unused: dict[str, list[str]] = {}
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
            f"{folder}: left out {reason}: {len(names)} ({names[0]}{', …' * (len(names) > 1)})"
            for reason, names in self._unused.items()
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
        for name, is_folder, _ in _entries(self._folder):
            if not is_folder:
                self._leave_out("files beside the class folders", name)
            elif not is_class(name):
                self._leave_out("folders that programs make for themselves", name)
            elif images := self._images(name):
                found[name] = images
        return found

    def _images(self, name: str) -> list[str]:
        """Return the names of a class's images; counts what else its folder holds."""
        images = []
        for inner, is_folder, is_file in _entries(self._folder / name):
            if is_folder:
                for folder, _, files in os.walk(self._folder / name / inner):
                    for image in filter(is_image, files):
                        self._leave_out("images in folders within a class", f"{folder}/{image}")
            elif is_file and is_image(inner):
                images.append(inner)
            else:
                self._leave_out("files that are hidden or no images", f"{name}/{inner}")
        if not images:
            self._leave_out(_EMPTY, name)
        return images

    @property
    def _empty(self) -> list[str]:
        return self._unused.get(_EMPTY, [])

    def _leave_out(self, reason: str, name: str) -> None:
        self._unused.setdefault(reason, []).append(name)

    def __len__(self) -> int:
        return len(self._files)

    @override
    def image(self, index: int) -> tuple[Payload, int]:
        path, label = self._files[index]
        try:
            return path.read_bytes(), label
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
        return sorted((entry.name, entry.is_dir(), entry.is_file()) for entry in entries)
