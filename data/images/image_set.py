"""Labeled images for classifiers: the interface of a set, and sets that are kept in memory.

Threads ask a set for single images by number. The images of large sets are decoded at each request
(``class_files.FileImages``).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.decoding import Image
from data.records.recordio import Payload


class ImageSet(Protocol):
    """Numbered images and their classes."""

    num_classes: int
    left_out: Sequence[str] = ()
    """Lines that say which of its files are not used, and why."""

    def __len__(self) -> int: ...

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

    def image(self, index: int) -> tuple[Payload, int]:
        """Return the bytes of an image, encoded if they are so in its file, and its class."""
        image, label = self.decoded(index)
        return image.tobytes(), label

    def fingerprint(self) -> str:
        """Return what tells the set from others, wherever it is; empty if its images have to."""
        return ""


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
