"""Sets of images whose files say the classes: two record files, or two folders with a folder each.

The form in which a user packs any set of images; ImageNet and CIFAR are read from it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from typing_extensions import override

from data.decoding import FILE_ENDINGS, decode_file
from data.identities import is_image
from data.images.image_set import DecodedImages, EncodedSet
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError, Payload
from runtime.errors import DataError


def open_records(training: Path, validation: Path) -> tuple[DecodedImages, DecodedImages]:
    """Open two record files, as MXNet's ``im2rec`` writes them; the labels are class numbers.

    Raises:
        DataError: a file is broken, or validation has classes that training lacks.
    """
    training_set, validation_set = RecordSet(training), RecordSet(validation)
    if validation_set.num_classes > training_set.num_classes:
        raise DataError(
            f"{validation} has {validation_set.num_classes} classes, {training} only "
            f"{training_set.num_classes}; pack both from one list of classes"
        )
    return DecodedImages(training_set), DecodedImages(validation_set)


def open_folders(training: Path, validation: Path) -> tuple[DecodedImages, DecodedImages]:
    """Open two folders, each with a folder of images per class; classes are sorted by their names.

    Raises:
        DataError: one has no images, or validation has classes that training lacks.
    """
    training_set = ClassFolders(training)
    validation_set = ClassFolders(validation, training_set.classes)
    return DecodedImages(training_set, decode_file), DecodedImages(validation_set, decode_file)


class ClassFolders(EncodedSet):
    """The images in a folder per class, in the order of their names.

    Attributes:
        classes: the names of the folders, in the order of their labels.
    """

    def __init__(self, folder: Path, classes: Optional[Sequence[str]] = None) -> None:
        """List the files of a folder per class; ``classes`` are the names of these by default.

        Raises:
            DataError: there are no images, or a class that is not one of ``classes``.
        """
        found = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.classes = found if classes is None else list(classes)
        self.num_classes = len(self.classes)
        unknown = sorted(set(found) - set(self.classes))
        if unknown:
            raise DataError(
                f"{folder / unknown[0]} is a class without training images; remove it, or add them"
            )
        labels = {name: label for label, name in enumerate(self.classes)}
        self._files = [
            (path, labels[name])
            for name in found
            for path in sorted((folder / name).iterdir())
            if is_image(path.name)
        ]
        if not self._files:
            raise DataError(
                f"{folder} holds no folders with images ({', '.join(FILE_ENDINGS)}); it needs "
                "one folder per class"
            )

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
