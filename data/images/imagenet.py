"""ImageNet, or any set of its form: two record files, or two folders with a folder per class."""

from __future__ import annotations

import os
from pathlib import Path

from data.images.class_files import open_folders, open_records
from data.images.image_set import DecodedImages
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
        if not os.path.isfile(path):
            raise DataError(
                f"{option} {path} does not exist; pack it from images with MXNet's im2rec. "
                + _PUBLISHED
            )
    return open_records(training, validation)


def read_folders(folder: Path) -> tuple[DecodedImages, DecodedImages]:
    """Open the folders ``train`` and ``val`` in a folder, each with a folder of images per class.

    Raises:
        DataError: one is missing or empty, or validation has classes that training lacks.
    """
    for part in ("train", "val"):
        if not os.path.isdir(folder / part):
            raise DataError(
                f"{folder / part} does not exist; --data-dir needs the folders train and val with "
                f"a folder of images per class in each. {_PUBLISHED}"
            )
    return open_folders(folder / "train", folder / "val")
