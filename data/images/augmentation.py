"""Random changes of faces to train on: losses of quality, colors, a gray square, mirroring.

Each change has random numbers of its own, which depend on the seed, the update, the image's row in
the global batch and the name of the change. So neither other changes, nor their order, nor the
number of ranks and threads affect what a change does.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import cv2
import numpy as np
from numpy.typing import NDArray

from data.decoding import Image
from data.images.transforms import GRAY, jitter_matrix, resized

Draws = Mapping[str, NDArray[np.float64]]
"""Random numbers of each change that is on: float64 ``[images, numbers of the change]``, 0 … 1."""

# Qualities of JPEG, 2 to 20.
_LOWEST_QUALITY, _QUALITIES = 2, 19
# Sides of a shrunk image over those of the image; of blur, in pixels.
_SMALLEST_SCALE = 0.2
_SMALLEST_SIGMA, _LARGEST_SIGMA = 0.5, 2.0


@dataclass(frozen=True)
class Augmentation:
    """The changes and their strengths; 0 is off.

    They are made in the order of the fields, in which a camera and a network lose quality:
    sharpness, resolution, what JPEG takes, colors.
    """

    blur: float = 0.0
    """Share of the images that a Gaussian of 0.5 to 2 pixels blurs."""

    low_resolution: float = 0.0
    """Share of the images that are shrunk to 0.2 to 1 of their sides, and enlarged again.

    Kim et al., AdaFace: Quality Adaptive Margin for Face Recognition, 2022, section 4.1, where it
    is 0.2.
    """

    jpeg_compression: float = 0.0
    """Share of the images that are compressed as JPEG of a quality from 2 to 20.

    InsightFace compresses half of them, before it changes their colors.
    """

    color_jitter: float = 0.0
    """Largest relative change of brightness, contrast and saturation, 0 … 1."""

    gray: float = 0.0
    """Share of the images that lose their colors."""

    cutout: float = 0.0
    """Side of the gray square as a fraction of the image's sides, 0 … 1.

    The square's center is anywhere in the image, so that part of it may lie outside (DeVries and
    Taylor, Improved Regularization of Convolutional Neural Networks with Cutout, 2017).
    """

    mirror: float = 0.0
    """Share of the images that are mirrored."""

    def draw(self, seed: Sequence[int], first: int, count: int) -> Draws:
        """Draw what ``apply`` needs for the rows ``[first, first + count)`` of a global batch."""
        draws = {}
        for name, (_, numbers) in _CHANGES.items():
            if getattr(self, name):
                rng = np.random.default_rng((*seed, zlib.crc32(name.encode())))
                draws[name] = rng.random((first + count, numbers))[first:]
        return draws

    def apply(self, image: Image, draws: Draws, row: int) -> Image:
        """Return a changed image.

        Args:
            image: uint8 ``[height, width, 3]``, RGB; may be changed in place.
            draws: of ``draw``.
            row: of the image in them.
        """
        for name, drawn in draws.items():
            (change, _), value, numbers = _CHANGES[name], getattr(self, name), drawn[row].tolist()
            if name in _STRENGTHS:
                image = change(image, value, *numbers)
            elif numbers[0] < value:
                image = change(image, *numbers[1:])
        return image


def _blur(image: Image, strength: float) -> Image:
    sigma = _SMALLEST_SIGMA + (_LARGEST_SIGMA - _SMALLEST_SIGMA) * strength
    return np.asarray(cv2.GaussianBlur(image, (0, 0), sigma), np.uint8)


def _lower_resolution(image: Image, strength: float) -> Image:
    scale = _SMALLEST_SCALE + (1 - _SMALLEST_SCALE) * strength
    height, width = image.shape[:2]
    small = resized(image, max(1, round(scale * height)), max(1, round(scale * width)))
    return resized(small, height, width)


def _compress(image: Image, strength: float) -> Image:
    quality = _LOWEST_QUALITY + int(strength * _QUALITIES)
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    _, encoded = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR_RGB), np.uint8)


def _jitter(image: Image, strength: float, *numbers: float) -> Image:
    return np.asarray(cv2.transform(image, jitter_matrix(strength, *numbers)), np.uint8)


def _gray(image: Image) -> Image:
    luma = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.cvtColor(luma, cv2.COLOR_GRAY2RGB), np.uint8)


def _cut_out(image: Image, side: float, row: float, column: float) -> Image:
    (top, bottom), (left, right) = (
        (max(0, round((middle - side / 2) * pixels)), round((middle + side / 2) * pixels))
        for middle, pixels in ((row, image.shape[0]), (column, image.shape[1]))
    )
    image[top:bottom, left:right] = round(GRAY)
    return image


def _mirror(image: Image) -> Image:
    return np.asarray(cv2.flip(image, 1), np.uint8)


# Fields that have an option of the same name.
OPTIONS = tuple(one.name for one in fields(Augmentation) if one.name != "mirror")
# Fields that change every image; the others are the share of the images that they change, which
# their first random number decides.
_STRENGTHS = ("color_jitter", "cutout")
# The function of each field, and how many random numbers it takes.
_CHANGES: Mapping[str, tuple[Callable[..., Image], int]] = {
    "blur": (_blur, 2),
    "low_resolution": (_lower_resolution, 2),
    "jpeg_compression": (_compress, 2),
    "color_jitter": (_jitter, 3),
    "gray": (_gray, 1),
    "cutout": (_cut_out, 2),
    "mirror": (_mirror, 1),
}
