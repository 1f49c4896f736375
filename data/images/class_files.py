"""Sets of images whose files say the classes: two record files, or two folders with a folder each.

The form in which a user packs any set of images; ImageNet and CIFAR are read from it alike.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Optional, Union

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.decoding import Image, decode_file, decode_rgb
from data.identities import find_identities
from data.images.image_set import ImageSet
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError, Payload
from runtime import environment
from runtime.errors import DataError
from runtime.files import read_file

# Files of a set whose sizes are compared, not only their names: a network disk takes long for more.
_SIZED = 1 << 14


def open_records(training: Path, validation: Path) -> tuple[DecodedImages, DecodedImages]:
    """Open two record files, as MXNet's ``im2rec`` writes them; the labels are class numbers.

    Classes without an image are named, such as class 0 if labels are numbered from 1.

    Raises:
        DataError: a file is missing or broken, a label is no class, or validation has classes that
            training lacks.
    """
    for path in (training, validation):
        if not os.path.isfile(path):
            raise DataError(
                f"{path} does not exist; name a record file to train and one to test on, packed "
                "from images by MXNet's im2rec"
            )
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
    for folder in (training, validation):
        if not os.path.isdir(folder):
            raise DataError(
                f"{folder} does not exist; --data-dir needs the folders train and val with a "
                "folder of images per class in each"
            )
    first = ClassFolders(training)
    sets = first, ClassFolders(validation, first.classes)
    training_images, validation_images = (
        _readable(DecodedImages(one, decode_file, one.left_out)) for one in sets
    )
    return training_images, validation_images


class ClassFolders:
    """The images in a folder per class, in the order of their names.

    Attributes:
        classes: the names of the folders, in the order of their labels.
        num_classes: how many.
        left_out: lines that say what is not used, and why.
    """

    def __init__(self, folder: Path, classes: Optional[Sequence[str]] = None) -> None:
        """List the files of a folder per class.

        Args:
            folder: that of the classes' folders.
            classes: of the set that is trained on; by default those in the folder.

        Raises:
            DataError: there are no images, a folder cannot be listed, or a class is none of these.
        """
        found, self.left_out = find_identities(folder, 1, environment.visible_threads())
        own = {one.name: one.images for one in found}
        self.classes = list(own) if classes is None else classes
        self.num_classes = len(self.classes)
        labels = {name: label for label, name in enumerate(self.classes)}
        unknown = own.keys() - labels.keys()
        if unknown:
            raise DataError(
                f"{folder / min(unknown)} is a class without training images; remove it, or add "
                "them"
            )
        missing = [name for name in self.classes if name not in own]
        if missing:
            self.left_out.append(_line_of_absent(folder, len(labels), missing))
        self._files = [
            (folder / name / image, labels[name])
            for name, images in own.items()
            for image in images
        ]

    def __len__(self) -> int:
        return len(self._files)

    def image(self, index: int) -> tuple[Payload, int]:
        """Return an encoded image and its class.

        Raises:
            BrokenRecordError: it cannot be read; the message names it.
        """
        path, label = self._files[index]
        try:
            return read_file(path), label
        except OSError as error:
            raise BrokenRecordError(f"{path} cannot be read: {error.strerror}") from None

    def where(self, index: int) -> str:
        """Name the file of an image, for messages."""
        return str(self._files[index][0])

    def fingerprint(self) -> str:
        """Return what tells the set from others, wherever it is."""
        lines = []
        for path, label in self._files:
            size = 0
            with suppress(OSError):
                size = path.stat().st_size if len(self._files) <= _SIZED else 0
            lines.append(f"{label}/{path.name} {size}")
        checksum = zlib.crc32("\n".join(lines).encode(errors="surrogateescape"))
        return f"{len(self.classes)} folders, checksum {checksum:08x}"


class DecodedImages(ImageSet):
    """Images that are decoded at each request."""

    def __init__(
        self,
        encoded: Union[RecordSet, ClassFolders],
        decode: Callable[[Payload], Image] = decode_rgb,
        left_out: Sequence[str] = (),
    ) -> None:
        """Assemble it.

        Args:
            encoded: the images.
            decode: decodes one; by default as an image of a record.
            left_out: see ``ImageSet``.
        """
        self.num_classes, self.left_out = encoded.num_classes, left_out
        self._encoded, self._decode = encoded, decode

    def __len__(self) -> int:
        return len(self._encoded)

    @override
    def where(self, index: int) -> str:
        return self._encoded.where(index)

    @override
    def image(self, index: int) -> tuple[Payload, int]:
        return self._encoded.image(index)

    @override
    def fingerprint(self) -> str:
        return self._encoded.fingerprint()

    @override
    def decoded(self, index: int) -> tuple[Image, int]:
        payload, label = self._encoded.image(index)
        try:
            return self._decode(payload), label
        except BrokenRecordError as error:
            raise BrokenRecordError(f"{self.where(index)}: {error}") from None
