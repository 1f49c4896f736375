"""Sets of images whose files say the classes: two record files, or two folders with a folder each.

The form in which a user packs any set of images; ImageNet and CIFAR are read from it alike.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from typing_extensions import override

from data.contents import describe_file
from data.identities import find_identities
from data.image_interface import ImageFiles, ImageSet, first_readable
from data.records.record_set import RecordSet
from runtime.errors import DataError


def open_records(training: Path, validation: Path) -> tuple[ImageSet, ImageSet]:
    """Open two record files, as MXNet's ``im2rec`` writes them; the labels are class numbers.

    Raises:
        DataError: a file is missing or broken, a label is no class, or validation has classes that
            training lacks.
    """
    sets = RecordSet(training), RecordSet(validation)
    for records in sets:
        # All labels before the first update, so that every rank refuses a wrong one.
        records.labels()
        first_readable(records)
    num_classes, validated = sets[0].num_classes, sets[1].num_classes
    if validated > num_classes:
        raise DataError(
            f"{validation} has {validated} classes, {training} only {num_classes}; pack both from "
            "one list of classes"
        )
    return sets


def open_folders(training: Path, validation: Path) -> tuple[ImageSet, ImageSet]:
    """Open two folders, each with a folder of images per class; classes are sorted by their names.

    A class is a folder with images; what else is found is left out, and the sets say so.

    Raises:
        DataError: one has no images, or validation has classes that training lacks.
    """
    first = ClassFolders(training)
    sets = first, ClassFolders(validation, first.classes)
    for images in sets:
        # Others are skipped later.
        first_readable(images)
    return sets


class ClassFolders(ImageFiles):
    """The images in a folder per class, in the order of their names.

    Attributes:
        classes: the names of the folders, in the order of their labels.
    """

    def __init__(self, folder: Path, classes: Optional[Sequence[str]] = None) -> None:
        """List the files of a folder per class.

        Args:
            folder: that of the classes' folders.
            classes: of the set that is trained on; by default those in the folder.

        Raises:
            DataError: there are no images, a folder cannot be listed, or a class is none of these.
        """
        self._folder = folder
        own, left_out = find_identities(folder)
        self.classes = list(own) if classes is None else classes
        labels = {name: label for label, name in enumerate(self.classes)}
        unknown = own.keys() - labels.keys()
        if unknown:
            raise DataError(
                f"{folder / min(unknown)} is a class without training images; remove it, or add "
                "them"
            )
        paths = [os.path.join(folder, name, image) for name in own for image in own[name]]
        numbers = [labels[name] for name in own for _ in own[name]]
        super().__init__(paths, numbers, len(self.classes), left_out)

    @override
    def fingerprint(self) -> str:
        return describe_file(self._folder)
