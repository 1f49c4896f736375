"""Sets of labeled images, of which threads ask for single images by number; and image files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, Union

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.contents import Images
from data.decoding import Image, decode_rgb, read_image
from data.records.recordio import BrokenRecordError, Payload
from runtime.errors import DataError

# Bounds the memory that labels take.
_LABELS_AT_ONCE = 1 << 18

Labels = NDArray[np.int32]
"""The identities of some images; -1 where an image is unreadable."""


class ImageSet(Images, Protocol):
    """Numbered images and their classes, decoded."""

    num_classes: int
    left_out: Sequence[str] = ()
    """Lines that say which of its files are not used, and why."""

    def decoded(self, index: int) -> tuple[Image, int]:
        """Return an image and its class.

        The image is uint8 ``[height, width, channels]``, RGB or gray; the caller may change it.

        Raises:
            BrokenRecordError: the image cannot be read; others may be fine.
            DataError: its label is not one of the classes.
        """

    def where(self, index: int) -> str:
        """Name the file of an image, for messages."""
        return f"image {index}"

    @override
    def fingerprint(self) -> str:
        return ""


class EncodedImages(ImageSet, Protocol):
    """Images of files, encoded: as bytes by ``image``, and decoded at each request."""

    def image(self, index: int) -> tuple[Payload, int]:
        """Return the image at ``0 <= index < len(self)``, still encoded, and its class.

        Raises:
            BrokenRecordError: the image cannot be read; others may be fine.
            DataError: its label is not one of the classes.
        """

    @override
    def decoded(self, index: int) -> tuple[Image, int]:
        payload, label = self.image(index)
        try:
            return decode_rgb(payload), label
        except BrokenRecordError as error:
            raise BrokenRecordError(f"{self.where(index)}: {error}") from None


class ImageFiles(ImageSet):
    """Image files of all formats that are decoded."""

    def __init__(
        self,
        paths: Sequence[str],
        labels: Sequence[int],
        num_classes: int,
        left_out: Sequence[str] = (),
    ) -> None:
        """Args: the files and their classes; how many classes; which files are left out."""
        self.paths, self.labels = paths, labels
        self.num_classes, self.left_out = num_classes, left_out

    def __len__(self) -> int:
        return len(self.paths)

    @override
    def decoded(self, index: int) -> tuple[Image, int]:
        return read_image(self.paths[index]), self.labels[index]

    @override
    def where(self, index: int) -> str:
        return self.paths[index]


class LabeledRecords(EncodedImages, Protocol):
    """Images of faces and their identities.

    In one array, the identities of a billion images would take 4 GB of every rank. So they stay in
    the caches of the files, each of which is mapped when it is first looked at.

    Attributes:
        path: of the set, for messages.
        num_classes: the number of identities.
        image_size: height and width of the images, in pixels.
    """

    path: Union[Path, str]
    image_size: tuple[int, int]

    def label_chunks(self) -> Iterator[tuple[int, Labels]]:
        """Yield all labels in order: the index of the first image, and those of some images.

        Raises:
            DataError: a label is not one of the classes.
        """
        for start in range(0, len(self), _LABELS_AT_ONCE):
            yield start, self.labels_between(start, start + _LABELS_AT_ONCE)

    def labels_between(self, start: int, stop: int) -> Labels:
        """Return the labels of some images, of which there is one; their arrays stay mapped.

        Raises:
            DataError: a label is not one of the classes.
        """


def first_readable(images: ImageSet) -> int:
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
