"""Changes of the colors of several images in one compiled call, without Python's lock.

Threads that decode take turns at the lock. With a call for each image and each change, two of them
were no faster than one.

Shapes: n images, of ``height`` rows and ``width`` columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runtime.kernels.compiled import unlocked_kernel

LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""What red, green and blue weigh in the gray of a color (ITU-R BT.601)."""

GRAY = 127.5
"""The middle of a pixel's range, which the face networks' normalization maps to 0."""

_WHITE = np.float32(255)
_ROUNDED_GRAY = np.uint8(round(GRAY))


def unchanged(count: int) -> NDArray[np.float32]:
    """Return matrices that change no color: float32 ``[count, 3, 4]``."""
    return np.tile(np.eye(3, 4, dtype=np.float32), (count, 1, 1))


@unlocked_kernel
def jittered(strength: float, draws: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what changes brightness, contrast and saturation at once: float32 ``[n, 3, 4]``.

    Args:
        strength: the largest relative change of each.
        draws: float32 ``[n, 3]``, of 0 … 1, one for each.
    """
    matrices = np.empty((len(draws), 3, 4), np.float32)
    for i in range(len(draws)):
        brightness, contrast, saturation = 1 + strength * (2 * draws[i] - 1)
        for row in range(3):
            for column in range(3):
                mixing = saturation * (row == column) + (1 - saturation) * LUMA[column]
                matrices[i, row, column] = brightness * contrast * mixing
            matrices[i, row, 3] = (1 - contrast) * GRAY
    return matrices


def grayed(matrices: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what changes colors by matrices, float32 ``[n, 3, 4]``, and then makes them gray."""
    return np.broadcast_to((LUMA @ matrices)[:, None], matrices.shape)


@unlocked_kernel
def squares(side: float, draws: NDArray[np.float32], height: int, width: int) -> NDArray[np.int64]:
    """Return the parts of images that a gray square covers.

    Args:
        side: of the square as a fraction of the image's sides.
        draws: float32 ``[n, 2]``, of 0 … 1: where its middle is.
        height: of the images.
        width: of the images.

    Returns:
        int64 ``[n, 2, 2]``: the first row and that behind the last, the columns likewise.
    """
    covered = np.empty((len(draws), 2, 2), np.int64)
    for i in range(len(draws)):
        for axis, pixels in enumerate((height, width)):
            middle, half = draws[i, axis] * pixels, side * pixels / 2
            covered[i, axis, 0] = max(0, int(np.rint(middle - half)))
            covered[i, axis, 1] = min(pixels, int(np.rint(middle + half)))
    return covered


@unlocked_kernel
def recolor(
    images: NDArray[np.uint8], matrices: NDArray[np.float32], covered: NDArray[np.int64]
) -> None:
    """Change images in place.

    Args:
        images: uint8 ``[at least n, height, width, 3]``, RGB, contiguous.
        matrices: float32 ``[n, 3, 4]`` of the first n: each color becomes its product with the
            first three columns, plus the last, rounded and cut off at black and white.
        covered: int64 ``[n, 2, 2]``, of ``squares``: becomes gray.
    """
    assert len(matrices) == len(covered) <= len(images)
    for i in range(len(matrices)):
        if not _changes_nothing(matrices[i]):
            _multiply(images[i].reshape(images[i].size), matrices[i])
        (top, bottom), (left, right) = covered[i]
        images[i, top:bottom, left:right] = _ROUNDED_GRAY


@unlocked_kernel
def _changes_nothing(matrix: NDArray[np.float32]) -> bool:
    for row in range(3):
        for column in range(4):
            if matrix[row, column] != np.float32(row == column):
                return False
    return True


@unlocked_kernel
def _multiply(pixels: NDArray[np.uint8], matrix: NDArray[np.float32]) -> None:
    a, b, c, d = matrix[0]
    e, f, g, h = matrix[1]
    k, m, n, o = matrix[2]
    zero, one, two, three = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)
    # Indices that cannot be negative let the compiler use wide instructions.
    for i in range(zero, np.uint64(pixels.size) // three):
        red = np.float32(pixels[three * i])
        green = np.float32(pixels[three * i + one])
        blue = np.float32(pixels[three * i + two])
        pixels[three * i] = _level(a * red + b * green + c * blue + d)
        pixels[three * i + one] = _level(e * red + f * green + g * blue + h)
        pixels[three * i + two] = _level(k * red + m * green + n * blue + o)


@unlocked_kernel
def _level(value: np.float32) -> np.uint8:
    return np.uint8(np.int32(np.rint(min(max(value, np.float32(0)), _WHITE))))
