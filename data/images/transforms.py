"""Changes of images on their way into a batch: random ones to train on, a fixed crop to test.

Batches have to be the same on any number of ranks and threads. So the random numbers of a whole
global batch are drawn at once, from a generator that depends on the update alone, and are applied
image by image wherever an image is decoded. Each change of faces has random numbers of its own,
drawn with the seed and its name, so that neither other changes nor their order affect it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import cv2
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.decoding import Image, encode
from data.images import cifar
from data.options import ImageDataOptions

# The middle of a pixel's range, which the face networks' normalization maps to 0.
_GRAY = 127.5

# Weights of red, green and blue in the gray of a color (ITU-R BT.601).
_LUMA = np.array([0.299, 0.587, 0.114])
_IDENTITY = np.eye(3)
# Of the colors of ImageNet's pixels, 0 … 255: standard deviations along the principal axes, and
# the axes (Krizhevsky et al., ImageNet Classification with Deep CNNs, 2012, section 4.1).
_AXES_DEVIATIONS = np.array([55.46, 4.794, 1.148], np.float32)
_AXES = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]],
    np.float32,
)
# RandomResizedCrop: shapes drawn per image, of which the first that fits is taken; the smallest
# area as a share of the image's; the largest ratio of the sides.
_ATTEMPTS = 10
_SMALLEST_AREA = 0.08
_LARGEST_RATIO = 4 / 3
# Qualities of JPEG, 2 to 20.
_LOWEST_QUALITY, _QUALITIES = 2, 19
# Sides of a shrunk image over those of the image; of blur, in pixels.
_SMALLEST_SCALE = 0.2
_SMALLEST_SIGMA, _LARGEST_SIGMA = 0.5, 2.0


class Unchanged:
    """The images of a batch as they are; derived classes change them."""

    def draw(self, seed: Sequence[int], count: int) -> NDArray[Any]:
        """Draw what ``apply`` needs for ``count`` images: ``[count, numbers]``; here nothing."""
        return np.empty((count, 0), np.float32)

    def apply(self, image: Image, draws: NDArray[Any]) -> Image:
        """Return the changed image.

        Args:
            image: uint8 ``[height, width, channels]``, RGB; may be changed in place.
            draws: this image's row of ``draw``.
        """
        return image


@dataclass(frozen=True)
class PadCropFlip(Unchanged):
    """Crop a random part of an image with a black border, mirror half of the images: for CIFAR."""

    padding: int = 4
    """Width of the border in pixels."""

    size: Optional[int] = None
    """Height and width of the result; None: those of the image."""

    @override
    def draw(self, seed: Sequence[int], count: int) -> NDArray[Any]:
        return np.random.default_rng(seed).random((count, 3), np.float32)

    @override
    def apply(self, image: Image, draws: NDArray[Any]) -> Image:
        (height, width), pad = image.shape[:2], self.padding
        padded = np.zeros((height + 2 * pad, width + 2 * pad, image.shape[2]), np.uint8)
        padded[pad : pad + height, pad : pad + width] = image
        cut_height, cut_width = (self.size or height), (self.size or width)
        row = int(draws[0] * (padded.shape[0] - cut_height + 1))
        column = int(draws[1] * (padded.shape[1] - cut_width + 1))
        cut = padded[row : row + cut_height, column : column + cut_width]
        return cut[:, ::-1] if draws[2] < 0.5 else cut


@dataclass(frozen=True)
class MiddleCrop(Unchanged):
    """Crop the middle of an image, unscaled: what ``PadCropFlip`` of a size is tested with."""

    size: int
    """Height and width of the result; at most those of the images."""

    @override
    def apply(self, image: Image, draws: NDArray[Any]) -> Image:
        top, left = ((side - self.size) // 2 for side in image.shape[:2])
        return image[top : top + self.size, left : left + self.size]


@dataclass(frozen=True)
class RandomResizedCrop(Unchanged):
    """Crop a random part, resize it, mirror half of the images, change the colors: for ImageNet.

    Szegedy et al., Going Deeper with Convolutions, arXiv:1409.4842, section 6: 8 to 100 % of the
    area, sides from 3:4 to 4:3; with the color changes of the MXNet and Horovod example.
    """

    size: int
    """Height and width of the result."""

    color_jitter: float = 0.4
    """Largest relative change of brightness, contrast and saturation."""

    lighting: float = 0.1
    """Standard deviation of the shift along the principal axes of ImageNet's colors."""

    @override
    def draw(self, seed: Sequence[int], count: int) -> NDArray[Any]:
        rng = np.random.default_rng(seed)
        uniform = rng.random((count, 2 * _ATTEMPTS + 6), np.float32)
        return np.hstack([uniform, rng.standard_normal((count, 3), np.float32)])

    @override
    def apply(self, image: Image, draws: NDArray[Any]) -> Image:
        shapes = draws[: 2 * _ATTEMPTS].reshape(_ATTEMPTS, 2)
        (row, column, flip), jitter, lighting = draws[-9:-6], draws[-6:-3], draws[-3:]
        height, width = _random_shape(image, shapes)
        top = int(row * (image.shape[0] - height + 1))
        left = int(column * (image.shape[1] - width + 1))
        image = _resized(image[top : top + height, left : left + width], self.size, self.size)
        matrix = _jitter_matrix(self.color_jitter, *jitter.tolist())
        matrix[:, 3] += _AXES @ (self.lighting * lighting * _AXES_DEVIATIONS)
        image = cv2.transform(image, matrix)
        return image[:, ::-1] if flip < 0.5 else image


@dataclass(frozen=True)
class CenterCrop(MiddleCrop):
    """Scale the shorter side to 8/7 of the size and crop the center, as ImageNet is tested."""

    @override
    def apply(self, image: Image, draws: NDArray[Any]) -> Image:
        height, width = image.shape[:2]
        scale = self.size * 8 / 7 / min(height, width)
        height, width = max(self.size, round(scale * height)), max(self.size, round(scale * width))
        return super().apply(_resized(image, height, width), draws)


def _random_shape(image: Image, shapes: NDArray[np.float32]) -> tuple[int, int]:
    """Return height and width of the first part that fits into the image; its own if none does."""
    height, width = image.shape[:2]
    for area_draw, ratio_draw in shapes.tolist():
        area = (_SMALLEST_AREA + (1 - _SMALLEST_AREA) * area_draw) * height * width
        ratio = math.exp((2 * ratio_draw - 1) * math.log(_LARGEST_RATIO))
        part = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < part[0] <= height and 0 < part[1] <= width:
            return part
    return height, width


def _resized(image: Image, height: int, width: int) -> Image:
    """Return an image of another size: by averaging areas where it shrinks."""
    method = cv2.INTER_AREA if height < image.shape[0] else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, (width, height), interpolation=method), np.uint8)


def _jitter_matrix(
    strength: float, brightness: float, contrast: float, saturation: float
) -> NDArray[np.float64]:
    """Return what changes brightness, contrast and saturation by ``cv2.transform``.

    Args:
        strength: the largest relative change of each.
        brightness: random number, 0 … 1.
        contrast: random number, 0 … 1.
        saturation: random number, 0 … 1.

    Returns:
        float64 ``[3, 4]``: each color becomes its product with the first three columns, plus the
        last.
    """
    brightness, contrast, saturation = (
        1 + strength * (2 * number - 1) for number in (brightness, contrast, saturation)
    )
    gain = brightness * contrast
    matrix = np.empty((3, 4))
    matrix[:, :3] = gain * saturation * _IDENTITY + gain * (1 - saturation) * _LUMA
    matrix[:, 3] = (1 - contrast) * _GRAY
    return matrix


class Augmentation(Unchanged):
    """The changes that are on, in an order in which a camera and a network lose quality.

    First sharpness, then resolution, what JPEG takes, colors.
    """

    def __init__(self, strengths: Mapping[str, float]) -> None:
        """Take the strength of each change by its name, that of its option; 0 is off.

        That of ``mirror``, which has no option, is the share of the images that are mirrored.
        """
        self._names = [name for name in _CHANGES if strengths.get(name)]
        # For each change: its strength, True if it changes every image, its columns of the draws.
        self._steps: list[tuple[Callable[..., Image], float, bool, int, int]] = []
        place = 0
        for name in self._names:
            change, count = _CHANGES[name]
            is_of_all = name in _OF_EVERY_IMAGE
            self._steps.append((change, strengths[name], is_of_all, place, place + count))
            place += count

    @override
    def draw(self, seed: Sequence[int], count: int) -> NDArray[Any]:
        columns = [
            np.random.default_rng((*seed, zlib.crc32(name.encode()))).random((count, stop - start))
            for name, (*_, start, stop) in zip(self._names, self._steps)
        ]
        return np.hstack([np.empty((count, 0)), *columns])

    @override
    def apply(self, image: Image, draws: NDArray[Any]) -> Image:
        numbers = draws.tolist()
        for change, strength, is_of_all, start, stop in self._steps:
            if is_of_all:
                image = change(image, strength, *numbers[start:stop])
            elif numbers[start] < strength:
                image = change(image, *numbers[start + 1 : stop])
        return image


def _blur(image: Image, strength: float) -> Image:
    sigma = _SMALLEST_SIGMA + (_LARGEST_SIGMA - _SMALLEST_SIGMA) * strength
    return np.asarray(cv2.GaussianBlur(image, (0, 0), sigma), np.uint8)


def _lower_resolution(image: Image, strength: float) -> Image:
    """Shrink an image to 0.2 to 1 of its sides, and enlarge it again.

    Kim et al., AdaFace: Quality Adaptive Margin for Face Recognition, 2022, section 4.1, where the
    share is 0.2.
    """
    scale = _SMALLEST_SCALE + (1 - _SMALLEST_SCALE) * strength
    height, width = image.shape[:2]
    small = _resized(image, max(1, round(scale * height)), max(1, round(scale * width)))
    return _resized(small, height, width)


def _compress(image: Image, strength: float) -> Image:
    """Compress an image as JPEG; InsightFace does it to half of them, before colors change."""
    quality = _LOWEST_QUALITY + int(strength * _QUALITIES)
    encoded = np.frombuffer(encode(image, lossless=False, quality=quality), np.uint8)
    return np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR_RGB), np.uint8)


def _jitter(image: Image, strength: float, *numbers: float) -> Image:
    return np.asarray(cv2.transform(image, _jitter_matrix(strength, *numbers)), np.uint8)


def _gray(image: Image) -> Image:
    luma = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.cvtColor(luma, cv2.COLOR_GRAY2RGB), np.uint8)


def _cut_out(image: Image, side: float, row: float, column: float) -> Image:
    """Put a gray square on an image; its center is anywhere, so that part of it may lie outside.

    DeVries and Taylor, Improved Regularization of Convolutional Neural Networks with Cutout, 2017.
    """
    (top, bottom), (left, right) = (
        (max(0, round((middle - side / 2) * pixels)), round((middle + side / 2) * pixels))
        for middle, pixels in ((row, image.shape[0]), (column, image.shape[1]))
    )
    image[top:bottom, left:right] = round(_GRAY)
    return image


def _mirror(image: Image) -> Image:
    return np.asarray(cv2.flip(image, 1), np.uint8)


# These change every image; the strength of the others is the share of the images that they change,
# which their first random number decides.
_OF_EVERY_IMAGE = ("color_jitter", "cutout")
# The function of each change, and how many random numbers it takes.
_CHANGES: Mapping[str, tuple[Callable[..., Image], int]] = {
    "blur": (_blur, 2),
    "low_resolution": (_lower_resolution, 2),
    "jpeg_compression": (_compress, 2),
    "color_jitter": (_jitter, 3),
    "gray": (_gray, 1),
    "cutout": (_cut_out, 2),
    "mirror": (_mirror, 1),
}
CHANGES_OF_FACES = tuple(name for name in _CHANGES if name != "mirror")
"""Changes that have an option of the same name."""


def transforms_of(data: ImageDataOptions, size: int) -> tuple[Unchanged, Unchanged]:
    """Return what is done to images to train on, and to those to validate on.

    CIFAR has shifted crops of whole images, as in the tutorial, or plain smaller crops: those of
    Grouping-SGD's networks for 28 pixels.

    Args:
        data: the options.
        size: height and width of the results.
    """
    if data.images == "imagenet":
        return RandomResizedCrop(size), CenterCrop(size)
    if data.images in cifar.SETS:
        if size < cifar.SIDE:
            return PadCropFlip(padding=0, size=size), MiddleCrop(size)
        return PadCropFlip(), Unchanged()
    return Unchanged(), Unchanged()
