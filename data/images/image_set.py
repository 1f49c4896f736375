"""Labeled images for classifiers: the interface of a set, and its two implementations.

Threads ask a set for single images by number. Small sets are kept decoded in memory; the images of
large ones are decoded at each request.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.decoding import Image, decode_rgb
from data.records.recordio import BrokenRecordError, Payload


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


class EncodedSet(Protocol):
    """Numbered images that are still encoded, such as a ``RecordSet``."""

    num_classes: int

    def __len__(self) -> int: ...

    def image(self, index: int) -> tuple[Payload, int]:
        """Return an encoded image and its class.

        Raises:
            BrokenRecordError: it cannot be read; the message names it.
        """

    def where(self, index: int) -> str:
        """Name the file of an image, for messages."""

    def fingerprint(self) -> str:
        """Return what tells the set from others, wherever it is."""


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


class DecodedImages(ImageSet):
    """Images that are decoded at each request."""

    def __init__(
        self,
        encoded: EncodedSet,
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
        payload, label = self.image(index)
        try:
            return self._decode(payload), label
        except BrokenRecordError as error:
            raise BrokenRecordError(f"{self.where(index)}: {error}") from None
