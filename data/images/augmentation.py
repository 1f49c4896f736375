"""Random changes to training images: color jitter and cutout.

Batches have to be the same on any number of ranks and threads. So the random numbers of a whole
global batch are drawn at once, from a generator that depends on the update alone, and are applied
image by image wherever an image is decoded.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from data.images.decoding import Image

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
# Half of the range of a pixel: what the networks' normalization maps to 0.
_GRAY = 127.5
_NUM_DRAWS = 5


@dataclass(frozen=True)
class Augmentation:
    """How much training images are changed."""

    color_jitter: float = 0.0
    """Largest relative change of brightness, contrast and saturation, 0 … 1; 0 is off."""

    cutout: float = 0.0
    """Side of the gray square as a fraction of the image's sides, 0 … 1; 0 is off.

    The square's center is anywhere in the image, so that part of it may lie outside (DeVries and
    Taylor, Improved Regularization of Convolutional Neural Networks with Cutout, 2017).
    """

    def __post_init__(self) -> None:
        assert 0 <= self.color_jitter <= 1 and 0 <= self.cutout <= 1, self

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
        """Draw what ``apply`` needs for ``count`` images: float32 ``[count, 5]`` in 0 … 1."""
        return rng.random((count, _NUM_DRAWS), np.float32)

    def apply(self, image: Image, draws: NDArray[np.float32]) -> Image:
        """Return the changed image.

        Args:
            image: uint8 ``[height, width, 3]``, RGB; may be changed in place.
            draws: this image's row of ``draw``.
        """
        if self.color_jitter:
            image = cv2.transform(image, color_matrix(self.color_jitter, draws[:3]))
        if self.cutout:
            self._cut_out(image, draws[3:])
        return image

    def _cut_out(self, image: Image, draws: NDArray[np.float32]) -> None:
        height, width = image.shape[:2]
        half_height, half_width = self.cutout * height / 2, self.cutout * width / 2
        row, column = draws[0] * height, draws[1] * width
        rows = slice(max(0, round(row - half_height)), round(row + half_height))
        columns = slice(max(0, round(column - half_width)), round(column + half_width))
        image[rows, columns] = round(_GRAY)


def color_matrix(strength: float, draws: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the 3 x 4 matrix that changes brightness, contrast and saturation at once.

    Args:
        strength: largest relative change of each.
        draws: three numbers of 0 … 1.
    """
    brightness, contrast, saturation = 1 + strength * (2 * draws - 1)
    mixing = saturation * np.eye(3, dtype=np.float32) + (1 - saturation) * _LUMA
    offset = np.full((3, 1), (1 - contrast) * _GRAY, np.float32)
    return np.hstack([brightness * contrast * mixing, offset])
