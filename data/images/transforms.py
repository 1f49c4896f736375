"""What is done to the images of a classifier: random changes to train on, one fixed cut to test.

As with faces, the random numbers of a whole global batch are drawn at once, from a generator that
depends on the update alone, so that batches are the same on any number of ranks and threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from data.images.augmentation import color_matrix
from data.images.decoding import Image

# Of the colors of ImageNet's pixels, 0 … 255: standard deviations along the principal axes, and
# the axes (Krizhevsky et al., ImageNet Classification with Deep CNNs, 2012, section 4.1).
_AXES_DEVIATIONS = np.array([55.46, 4.794, 1.148], np.float32)
_AXES = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]],
    np.float32,
)
# Random parts that do not fit into an image are drawn again, so often.
_ATTEMPTS = 10
_SMALLEST_AREA = 0.08
_LARGEST_RATIO = 4 / 3


class ImageTransform(Protocol):
    """How the images of a set become those of a batch."""

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
        """Draw what ``apply`` needs for ``count`` images: float32 ``[count, …]``."""

    def apply(self, image: Image, draws: NDArray[np.float32]) -> Image:
        """Return the changed image.

        Args:
            image: uint8 ``[height, width, channels]``; may be changed in place.
            draws: this image's row of ``draw``.
        """


class Unchanged:
    """The images as they are."""

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
        """See ``ImageTransform``."""
        return np.empty((count, 0), np.float32)

    def apply(self, image: Image, draws: NDArray[np.float32]) -> Image:
        """See ``ImageTransform``."""
        return image


@dataclass(frozen=True)
class PadCropFlip:
    """Move an image by some pixels over black ground and mirror half of them, as for CIFAR-10."""

    padding: int = 4

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
        """See ``ImageTransform``."""
        return rng.random((count, 3), np.float32)

    def apply(self, image: Image, draws: NDArray[np.float32]) -> Image:
        """See ``ImageTransform``."""
        height, width = image.shape[:2]
        pad = self.padding
        padded = np.zeros((height + 2 * pad, width + 2 * pad, image.shape[2]), np.uint8)
        padded[pad : pad + height, pad : pad + width] = image
        row, column = (int(draw * (2 * pad + 1)) for draw in draws[:2])
        cut = padded[row : row + height, column : column + width]
        return cut[:, ::-1] if draws[2] < 0.5 else cut


@dataclass(frozen=True)
class RandomResizedCrop:
    """Cut a random part, bring it to size, mirror half, change the colors: ImageNet's transform.

    Szegedy et al., Going Deeper with Convolutions, arXiv:1409.4842, section 6: 8 to 100 % of the
    area, sides from 3:4 to 4:3; with the color changes of the MXNet and Horovod example.
    """

    size: int
    """Height and width of the result."""

    color_jitter: float = 0.4
    """Largest relative change of brightness, contrast and saturation."""

    lighting: float = 0.1
    """Standard deviation of the shift along the principal axes of ImageNet's colors."""

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
        """See ``ImageTransform``."""
        uniform = rng.random((count, 2 * _ATTEMPTS + 6), np.float32)
        return np.hstack([uniform, rng.standard_normal((count, 3), np.float32)])

    def apply(self, image: Image, draws: NDArray[np.float32]) -> Image:
        """See ``ImageTransform``."""
        shapes, (row, column, flip), jitter, lighting = (
            draws[: 2 * _ATTEMPTS].reshape(_ATTEMPTS, 2),
            draws[2 * _ATTEMPTS : -6],
            draws[-6:-3],
            draws[-3:],
        )
        height, width = _random_shape(image, shapes)
        top = int(row * (image.shape[0] - height + 1))
        left = int(column * (image.shape[1] - width + 1))
        image = _resized(image[top : top + height, left : left + width], self.size, self.size)
        matrix = color_matrix(self.color_jitter, jitter)
        matrix[:, 3] += _AXES @ (self.lighting * lighting * _AXES_DEVIATIONS)
        image = cv2.transform(image, matrix)
        return image[:, ::-1] if flip < 0.5 else image


@dataclass(frozen=True)
class CenterCrop:
    """Scale the shorter side to 8/7 of the size and cut the middle, as ImageNet is tested."""

    size: int
    """Height and width of the result."""

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
        """See ``ImageTransform``."""
        return np.empty((count, 0), np.float32)

    def apply(self, image: Image, draws: NDArray[np.float32]) -> Image:
        """See ``ImageTransform``."""
        height, width = image.shape[:2]
        scale = self.size * 8 / 7 / min(height, width)
        height, width = max(self.size, round(scale * height)), max(self.size, round(scale * width))
        image = _resized(image, height, width)
        top, left = (height - self.size) // 2, (width - self.size) // 2
        return image[top : top + self.size, left : left + self.size]


def _random_shape(image: Image, shapes: NDArray[np.float32]) -> tuple[int, int]:
    """Return height and width of the first random part that fits; the whole where none does."""
    height, width = image.shape[:2]
    for area_draw, ratio_draw in shapes.tolist():
        area = (_SMALLEST_AREA + (1 - _SMALLEST_AREA) * area_draw) * height * width
        ratio = math.exp((2 * ratio_draw - 1) * math.log(_LARGEST_RATIO))
        part = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < part[0] <= height and 0 < part[1] <= width:
            return part
    return height, width


def _resized(image: Image, height: int, width: int) -> Image:
    shrinks = height < image.shape[0]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, (width, height), interpolation=method), np.uint8)
