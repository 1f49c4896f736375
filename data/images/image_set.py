"""Labeled pictures for classifiers: what a set of them has to offer, and the two kinds there are.

A set is asked for single pictures by number, from any number of threads. Small sets lie decoded in
memory; large ones are decoded whenever a picture is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from data.images.decoding import Image, decode_rgb
from data.records.recordio import BrokenRecordError, Payload
from runtime.errors import DataError


class PictureSet(Protocol):
    """Numbered pictures and their classes."""

    num_classes: int

    def __len__(self) -> int:
        """Return the number of pictures."""

    def picture(self, index: int) -> tuple[Image, int]:
        """Return a picture uint8 ``[height, width, channels]``, the caller's own, and its class."""


class EncodedSet(Protocol):
    """Numbered pictures that are still encoded, such as a ``RecordSet``."""

    num_classes: int

    def __len__(self) -> int:
        """Return the number of pictures."""

    def image(self, index: int) -> tuple[Payload, int]:
        """Return an encoded picture and its class."""

    def where(self, index: int) -> str:
        """Name the file of a picture, for messages."""


class PicturesInMemory:
    """Pictures of one size, decoded."""

    def __init__(
        self, pictures: NDArray[np.uint8], labels: NDArray[np.uint8], num_classes: int
    ) -> None:
        """Args: uint8 ``[n, height, width, channels]``; their classes ``[n]``; how many classes."""
        assert pictures.ndim == 4 and len(pictures) == len(labels)
        self.num_classes = num_classes
        self._pictures, self._labels = pictures, labels

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self._pictures)

    def picture(self, index: int) -> tuple[Image, int]:
        """See ``PictureSet``."""
        return self._pictures[index].copy(), int(self._labels[index])


class DecodedPictures:
    """Pictures that are decoded when they are asked for."""

    def __init__(
        self, encoded: EncodedSet, decode: Callable[[Payload], Image] = decode_rgb
    ) -> None:
        """Args: where the pictures come from; what decodes one, that of records unless given."""
        self.num_classes = encoded.num_classes
        self._encoded = encoded
        self._decode = decode

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self._encoded)

    def picture(self, index: int) -> tuple[Image, int]:
        """See ``PictureSet``.

        Raises:
            DataError: the picture cannot be decoded.
        """
        payload, label = self._encoded.image(index)
        try:
            return self._decode(payload), label
        except BrokenRecordError as error:
            raise DataError(
                f"{self._encoded.where(index)}: {error}; copy it again, or leave it out of the set"
            ) from None
