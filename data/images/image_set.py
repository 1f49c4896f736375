"""Labeled images for classifiers: what a set of them has to offer, and the two kinds there are.

A set is asked for single images by number, from any number of threads. Small sets lie decoded in
memory; large ones are decoded whenever an image is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from data.images.decoding import Image, decode_rgb
from data.records.recordio import BrokenRecordError, Payload
from runtime.errors import DataError


class ImageSet(Protocol):
    """Numbered images and their classes."""

    num_classes: int

    def __len__(self) -> int:
        """Return the number of images."""

    def decoded(self, index: int) -> tuple[Image, int]:
        """Return an image uint8 ``[height, width, channels]``, the caller's own, and its class."""


class EncodedSet(Protocol):
    """Numbered images that are still encoded, such as a ``RecordSet``."""

    num_classes: int

    def __len__(self) -> int:
        """Return the number of images."""

    def image(self, index: int) -> tuple[Payload, int]:
        """Return an encoded image and its class."""

    def where(self, index: int) -> str:
        """Name the file of an image, for messages."""


class ImagesInMemory:
    """Images of one size, decoded."""

    def __init__(
        self, images: NDArray[np.uint8], labels: NDArray[np.uint8], num_classes: int
    ) -> None:
        """Args: uint8 ``[n, height, width, channels]``; their classes ``[n]``; how many classes."""
        assert images.ndim == 4 and len(images) == len(labels)
        self.num_classes = num_classes
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._images)

    def decoded(self, index: int) -> tuple[Image, int]:
        """See ``ImageSet``."""
        return self._images[index].copy(), int(self._labels[index])


class DecodedImages:
    """Images that are decoded when they are asked for."""

    def __init__(
        self, encoded: EncodedSet, decode: Callable[[Payload], Image] = decode_rgb
    ) -> None:
        """Args: where the images come from; what decodes one, that of records unless given."""
        self.num_classes = encoded.num_classes
        self._encoded = encoded
        self._decode = decode

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._encoded)

    def decoded(self, index: int) -> tuple[Image, int]:
        """See ``ImageSet``.

        Raises:
            DataError: the image cannot be decoded.
        """
        payload, label = self._encoded.image(index)
        try:
            return self._decode(payload), label
        except BrokenRecordError as error:
            raise DataError(
                f"{self._encoded.where(index)}: {error}; copy it again, or leave it out of the set"
            ) from None
