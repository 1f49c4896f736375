"""Interface of sets of labeled images: threads ask a set for single images by number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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


class EncodedImages(ImageSet, Protocol):
    """Images of files, encoded: as bytes by ``image``, and decoded at each request."""

    @override
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
            return self._decode(payload), label
        except BrokenRecordError as error:
            raise BrokenRecordError(f"{self.where(index)}: {error}") from None

    def _decode(self, payload: Payload) -> Image:
        return decode_rgb(payload)
