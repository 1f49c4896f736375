"""ImageNet, or any set of its form: two record files, or two folders with a folder per class."""

from __future__ import annotations

from pathlib import Path

from data.images.class_folders import ClassFolders
from data.images.decoding import decode_file
from data.images.image_set import DecodedImages
from data.records.record_set import RecordSet
from runtime.errors import DataError

_PUBLISHED = (
    "ImageNet is published as the ImageNet Large Scale Visual Recognition Challenge 2012 "
    "(www.image-net.org); --dataset synthetic needs no files"
)


def read_records(training: Path, validation: Path) -> tuple[DecodedImages, DecodedImages]:
    """Open two record files, as MXNet's ``im2rec`` writes them; the labels are class numbers.

    Raises:
        DataError: a file is missing or broken, or validation has classes that training lacks.
    """
    for option, path in (("--rec-train", training), ("--rec-val", validation)):
        if not path.is_file():
            raise DataError(
                f"{option} {path} does not exist; pack it from images with MXNet's im2rec. "
                + _PUBLISHED
            )
    sets = RecordSet(training), RecordSet(validation)
    if sets[1].num_classes > sets[0].num_classes:
        raise DataError(
            f"{validation} has {sets[1].num_classes} classes, {training} only "
            f"{sets[0].num_classes}; pack both from one list of classes"
        )
    return DecodedImages(sets[0]), DecodedImages(sets[1])


def read_folders(folder: Path) -> tuple[DecodedImages, DecodedImages]:
    """Open ``train`` and ``val`` in a folder, which hold a folder of images per class each.

    Raises:
        DataError: they are missing or empty, or validation has classes that training lacks.
    """
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            raise DataError(
                f"{folder / part} does not exist; --data-dir needs the folders train and val with "
                f"a folder of images per class in each. {_PUBLISHED}"
            )
    training = ClassFolders(folder / "train")
    validation = ClassFolders(folder / "val", training.classes)
    return DecodedImages(training, decode_file), DecodedImages(validation, decode_file)
