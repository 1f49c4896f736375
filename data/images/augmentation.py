"""Random changes of faces to train on: losses of quality, changes of colors, parts that are hidden.

Each has random numbers of its own, which depend on the seed, the update, the image's row in the
global batch and the name of the change. So neither other changes, nor their order, nor the number
of ranks and threads affect what a change does.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.decoding import Image, encode
from data.images.transforms import GRAY, Unchanged, jitter_matrix, resized

# Qualities of JPEG, 2 to 20.
_LOWEST_QUALITY, _QUALITIES = 2, 19
# Sides of a shrunk image over those of the image; of blur, in pixels.
_SMALLEST_SCALE = 0.2
_SMALLEST_SIGMA, _LARGEST_SIGMA = 0.5, 2.0


class Augmentation(Unchanged):
    """The changes that are on, in an order in which a camera and a network lose quality.

    First sharpness, then resolution, what JPEG takes, colors.
    """

    def __init__(self, strengths: Mapping[str, float]) -> None:
        """Take the strength of each change by its name, that of its option; 0 is off.

        That of ``mirror``, which has no option, is the share of the images that are mirrored.
        """
        self._strengths = {name: strengths[name] for name in _CHANGES if strengths.get(name)}

    @override
    def draw(self, seed: Sequence[int], count: int) -> NDArray[Any]:
        columns = [
            np.random.default_rng((*seed, zlib.crc32(name.encode()))).random((count, numbers))
            for name, (_, numbers) in _CHANGES.items()
            if name in self._strengths
        ]
        return np.hstack([np.empty((count, 0)), *columns])

    @override
    def apply(self, image: Image, draws: NDArray[Any]) -> Image:
        numbers = iter(draws.tolist())
        for name, strength in self._strengths.items():
            change, count = _CHANGES[name]
            first, *others = islice(numbers, count)
            if name in _OF_EVERY_IMAGE:
                image = change(image, strength, first, *others)
            elif first < strength:
                image = change(image, *others)
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
    small = resized(image, max(1, round(scale * height)), max(1, round(scale * width)))
    return resized(small, height, width)


def _compress(image: Image, strength: float) -> Image:
    """Compress an image as JPEG; InsightFace does it to half of them, before colors change."""
    quality = _LOWEST_QUALITY + int(strength * _QUALITIES)
    encoded = np.frombuffer(encode(image, lossless=False, quality=quality), np.uint8)
    return np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR_RGB), np.uint8)


def _jitter(image: Image, strength: float, *numbers: float) -> Image:
    return np.asarray(cv2.transform(image, jitter_matrix(strength, *numbers)), np.uint8)


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
    image[top:bottom, left:right] = round(GRAY)
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
