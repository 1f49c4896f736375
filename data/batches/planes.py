"""Writing decoded images into a batch, compiled.

The threads that decode take turns at Python's lock, and a thread that waits for it wakes up late.
So several images are written in one call, without the lock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runtime.compiled import (
    PIXELS_AT_ONCE,
    end_of_writes,
    split_colors,
    split_mirrored_colors,
    unlocked_kernel,
)

_AT_ONCE = np.uint64(PIXELS_AT_ONCE)
_ONE, _TWO, _THREE = np.uint64(1), np.uint64(2), np.uint64(3)

Plane = NDArray[np.uint8]
"""The pixels of an image, or one color of them, as a flat array."""


@unlocked_kernel
def write_planes(
    images: NDArray[np.uint8], planes: NDArray[np.uint8], mirrored: NDArray[np.bool_]
) -> None:
    """Write images in the layout of the networks.

    Args:
        images: uint8 ``[at least n, height, width, 3]``, contiguous.
        planes: uint8 ``[n, 3, height, width]``, contiguous; receives the first n images.
        mirrored: bool ``[n]``, whether left and right of an image are exchanged.

    Raises:
        ValueError: an image has another number of pixels.
    """
    width = np.uint64(planes.shape[3])
    size = planes.shape[2] * planes.shape[3]
    # Nobody reads a batch at once, and to fetch what is overwritten costs as much as to write it.
    aligned = not (width % _AT_ONCE or np.uint64(planes.ctypes.data) % _AT_ONCE)
    for i in range(len(planes)):
        pixels, written = images[i].reshape(3 * size), planes[i].reshape(3 * size)
        if aligned:
            _write_past_caches(pixels, written, width, mirrored[i])
        else:
            red, green, blue = written[:size], written[size : 2 * size], written[2 * size :]
            if mirrored[i]:
                _split_mirrored(pixels, red, green, blue, width)
            else:
                _split(pixels, red, green, blue)
    if aligned:
        end_of_writes()


@unlocked_kernel
def _write_past_caches(pixels: Plane, written: Plane, width: np.uint64, mirrored: bool) -> None:
    size = np.uint64(written.size) // _THREE
    source, red = np.uint64(pixels.ctypes.data), np.uint64(written.ctypes.data)
    green, blue = red + size, red + size + size
    if not mirrored:
        for i in range(np.uint64(0), size, _AT_ONCE):
            split_colors(source + _THREE * i, red + i, green + i, blue + i)
        return
    for row in range(np.uint64(0), size, width):
        # In the order of what is written, so that whole cache lines of it are complete soon.
        for to in range(row, row + width, _AT_ONCE):
            i = row + (row + width - _AT_ONCE - to)
            split_mirrored_colors(source + _THREE * i, red + to, green + to, blue + to)


# Indices that cannot be negative let the compiler use wide instructions: several times as fast.


@unlocked_kernel
def _split(pixels: Plane, red: Plane, green: Plane, blue: Plane) -> None:
    for i in range(np.uint64(red.size)):
        red[i] = pixels[_THREE * i]
        green[i] = pixels[_THREE * i + _ONE]
        blue[i] = pixels[_THREE * i + _TWO]


@unlocked_kernel
def _split_mirrored(pixels: Plane, red: Plane, green: Plane, blue: Plane, width: np.uint64) -> None:
    for row in range(np.uint64(red.size) // width):
        first = row * width
        last = first + width - _ONE
        for column in range(width):
            i = last - column
            red[first + column] = pixels[_THREE * i]
            green[first + column] = pixels[_THREE * i + _ONE]
            blue[first + column] = pixels[_THREE * i + _TWO]
