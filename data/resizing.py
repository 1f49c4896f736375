"""Images of another size than their set: resized as InsightFace's loader does.

``property`` says one size for all images, but sets of images that were never aligned have others,
250 x 250 for example, which InsightFace's loader resizes in every batch. This takes longer than to
read images of the right size, so a warning says it.
"""

from __future__ import annotations

import logging
import threading

import cv2

from data.decoding import Image
from data.records.recordio import BrokenRecordError

_log = logging.getLogger("data")


class Resizer:
    """Brings the images of a set to its size; says once that it does; called by any thread."""

    def __init__(self, size: tuple[int, int]) -> None:
        """Args: height and width of the set."""
        self._size = size
        # Taken by the first image that is resized, and never released.
        self._warning = threading.Lock()

    def fit(self, image: Image, name: str) -> Image:
        """Resize an image to the size of the set, with bicubic interpolation.

        InsightFace's loader resizes the shorter side to that of the set in this way, and ends at an
        image whose longer side then differs.

        Args:
            image: uint8 ``[height, width, 3]``.
            name: of the image, for messages.

        Raises:
            BrokenRecordError: the image has another shape.
        """
        (height, width), (new_height, new_width) = image.shape[:2], self._size
        if (height, width) == self._size:
            return image
        if not has_shape((height, width), self._size):
            raise BrokenRecordError(
                f"{name}: the image has {height} x {width} pixels, which is another shape than the "
                f"set's {new_height} x {new_width}"
            )
        if self._warning.acquire(blocking=False):
            _log.warning(
                "%s: the image has %d x %d pixels; images of another size than the set's %d x %d "
                "are resized (python -m data.inspect counts them)",
                *(name, height, width, *self._size),
            )
        resized: Image = cv2.resize(image, (new_width, new_height), interpolation=cv2.INTER_CUBIC)
        return resized


def has_shape(size: tuple[int, int], wanted: tuple[int, int]) -> bool:
    """Return True if both sides scale to the wanted ones, the longer one rounded down."""
    (height, width), (new_height, new_width) = size, wanted
    if height * new_width > width * new_height:
        return new_width * height // width == new_height
    return new_height * width // height == new_width
