"""Sets of labeled images: in record files, in folders, in memory, and drawn.

A user packs any images into two record files, or two folders with a folder per class each; ImageNet
and CIFAR are read from them alike. In a drawn set each class has a smooth pattern, and an image is
the pattern of its class, shifted, brighter or darker, under noise as strong as the pattern.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import cv2
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.contents import describe_file
from data.decoding import Image
from data.identities import find_identities
from data.image_interface import ImageFiles, ImageSet, first_readable
from data.records.record_set import RecordSet
from runtime.errors import DataError

_PARTS = {"training": 0, "validation": 1}
# The first number of every seed, so that no two uses share their random numbers.
_PATTERN, _IMAGE = range(2)
_CELLS = 4
_CONTRAST, _NOISE, _GRAY = 40.0, 40.0, 127.5
_LARGEST_SHIFT = 0.125


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


class ImagesInMemory(ImageSet):
    """Images of one size, decoded."""

    def __init__(
        self, images: NDArray[np.uint8], labels: NDArray[np.uint8], num_classes: int
    ) -> None:
        """Args: uint8 ``[n, height, width, channels]``; their classes ``[n]``; how many classes."""
        assert images.ndim == 4 and len(images) == len(labels)
        self.num_classes = num_classes
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    @override
    def decoded(self, index: int) -> tuple[Image, int]:
        return self._images[index].copy(), int(self._labels[index])

    @override
    def fingerprint(self) -> str:
        checksum = zlib.crc32(np.ascontiguousarray(self._images).data)
        return f"checksum {zlib.crc32(np.ascontiguousarray(self._labels).data, checksum):08x}"


class DrawnImages(ImageSet):
    """Images whose pixels depend on the seed, the part and the image's number alone."""

    def __init__(
        self, part: str, *, num_classes: int, count: int, shape: tuple[int, int, int], seed: int
    ) -> None:
        """Draw the patterns, one per class.

        Args:
            part: "training" or "validation", which have the same classes and different images.
            num_classes: image ``i`` is of class ``i % num_classes``.
            count: the number of images.
            shape: height, width and channels.
            seed: of everything that is drawn.
        """
        self.num_classes = num_classes
        self._count, self._shape = count, shape
        self._seeds = (_IMAGE, seed, _PARTS[part])
        self._patterns = [
            _pattern(np.random.default_rng((_PATTERN, seed, label)), shape)
            for label in range(num_classes)
        ]

    def __len__(self) -> int:
        return self._count

    @override
    def fingerprint(self) -> str:
        """By the seeds: processors may round the pixels in several ways."""
        return f"drawn with seeds {self._seeds}, {self._shape}"

    @override
    def decoded(self, index: int) -> tuple[Image, int]:
        label = index % self.num_classes
        rng = np.random.default_rng((*self._seeds, index))
        limits = [round(_LARGEST_SHIFT * side) for side in self._shape[:2]]
        shift = [int(rng.integers(-limit, limit + 1)) for limit in limits]
        shifted = np.roll(self._patterns[label], shift, (0, 1))
        light = rng.normal(1.0, 0.2)
        noise = rng.standard_normal(self._shape, np.float32) * np.float32(_NOISE)
        pixels = _GRAY + light * shifted + noise
        return np.clip(pixels, 0, 255).astype(np.uint8), label


def _pattern(rng: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    height, width, channels = shape
    cells = rng.standard_normal((_CELLS, _CELLS, channels), np.float32) * np.float32(_CONTRAST)
    smooth = cv2.resize(cells, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.asarray(smooth, np.float32).reshape(shape)
