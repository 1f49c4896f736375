"""Random changes of faces to train on: losses of quality, colors and a gray square."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

import cv2
import numpy as np
from numpy.typing import NDArray

from data.decoding import Image
from data.images import colors
from data.images.transforms import resized

# Of JPEG, 2 to 20.
_LOWEST_QUALITY, _QUALITIES = 2, 19
# Of low resolution, the sides over those of the image; of blur, in pixels.
_SMALLEST_SCALE = 0.2
_SMALLEST_SIGMA, _LARGEST_SIGMA = 0.5, 2.0


@dataclass(frozen=True)
class Augmentation:
    """Random losses of quality, colors and a gray square, for faces; all draws lie in 0 … 1.

    In the order in which a camera and a network lose them: sharpness, resolution, what JPEG takes,
    colors. Of most losses a share of the images is affected; 0 is off.
    """

    color_jitter: float = 0.0
    """Largest relative change of brightness, contrast and saturation, 0 … 1; 0 is off."""

    cutout: float = 0.0
    """Side of the gray square as a fraction of the image's sides, 0 … 1; 0 is off.

    The square's center is anywhere in the image, so that part of it may lie outside (DeVries and
    Taylor, Improved Regularization of Convolutional Neural Networks with Cutout, 2017).
    """

    jpeg_compression: float = 0.0
    """Share of the images that are compressed as JPEG of a quality from 2 to 20; 0 is off.

    InsightFace compresses half of them, before it changes their colors.
    """

    low_resolution: float = 0.0
    """Share of the images that are shrunk to 0.2 to 1 of their sides, and enlarged again.

    Kim et al., AdaFace: Quality Adaptive Margin for Face Recognition, 2022, section 4.1, where it
    is 0.2.
    """

    blur: float = 0.0
    """Share of the images that a Gaussian of 0.5 to 2 pixels blurs."""

    gray: float = 0.0
    """Share of the images that lose their colors."""

    def __post_init__(self) -> None:
        shares = (self.color_jitter, self.cutout, self.gray, *self._degradations)
        assert all(0 <= share <= 1 for share in shares), self

    @property
    def _degradations(self) -> tuple[float, float, float]:
        """The shares of losses that draw two numbers: whether an image has it, and how strong."""
        return self.jpeg_compression, self.low_resolution, self.blur

    @property
    def widths(self) -> tuple[int, ...]:
        """How many numbers an image takes of each draw; a draw is for all images of a batch.

        What is off draws nothing: as long as a new change stands last, runs without it draw what
        they drew before.
        """
        return (5, *(2 for share in self._degradations if share), *(1,) * bool(self.gray))

    def of_rows(
        self, draws: NDArray[np.float32], height: int, width: int
    ) -> Callable[[NDArray[np.uint8], slice], None]:
        """Return what changes images in place, some at a time: ``change(images, few)``.

        What is computed for each image apart is computed here, for all of them together.

        Args:
            draws: float32 ``[n, sum of widths]``, of 0 … 1.
            height: of the images.
            width: of the images.

        Returns:
            A function of uint8 ``[at least k, height, width, 3]``, RGB, contiguous, and of which k
            rows of the draws belong to the first k of them.
        """
        matrices, covered = self._recoloring(draws, height, width)
        degrades = any(self._degradations)

        def change(images: NDArray[np.uint8], few: slice) -> None:
            if degrades:
                for image, own in zip(images, draws[few]):
                    degraded = self._degraded(image, own)
                    if degraded is not image:
                        image[:] = degraded
            colors.recolor(images, matrices[few], covered[few])

        return change

    def _degraded(self, image: Image, draws: NDArray[np.float32]) -> Image:
        """Return an image with less sharpness, resolution and quality, or itself."""
        compression, resolution, blur = self._strengths(draws)
        if blur is not None:
            image = _blurred(image, _SMALLEST_SIGMA + (_LARGEST_SIGMA - _SMALLEST_SIGMA) * blur)
        if resolution is not None:
            image = _coarse(image, _SMALLEST_SCALE + (1 - _SMALLEST_SCALE) * resolution)
        if compression is not None:
            image = _compressed(image, _LOWEST_QUALITY + int(compression * _QUALITIES))
        return image

    def _recoloring(
        self, draws: NDArray[np.float32], height: int, width: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return matrices and squares of images for ``colors.recolor``."""
        matrices = colors.unchanged(len(draws))
        if self.color_jitter:
            matrices = colors.jittered(self.color_jitter, draws[:, :3])
        if self.gray:
            # The last that is drawn.
            matrices = np.where(
                (draws[:, -1] < self.gray)[:, None, None], colors.grayed(matrices), matrices
            )
        return matrices, colors.squares(self.cutout, draws[:, 3:5], height, width)

    def _strengths(self, draws: NDArray[np.float32]) -> list[Optional[float]]:
        """Return how strong each degradation of an image is, 0 … 1; None where it has none."""
        found: list[Optional[float]] = []
        start = 5
        for share in self._degradations:
            if not share:
                found.append(None)
                continue
            chance, strength = draws[start : start + 2].tolist()
            found.append(strength if chance < share else None)
            start += 2
        return found


def _blurred(image: Image, sigma: float) -> Image:
    return np.asarray(cv2.GaussianBlur(image, (0, 0), sigma), np.uint8)


def _coarse(image: Image, scale: float) -> Image:
    height, width = image.shape[:2]
    small = resized(image, max(1, round(scale * height)), max(1, round(scale * width)))
    return resized(small, height, width)


def _compressed(image: Image, quality: int) -> Image:
    done, encoded = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    assert done, quality
    return np.ascontiguousarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR)[..., ::-1])
