"""Writing decoded images into a batch, compiled.

The threads that decode take turns at Python's lock, and a thread that waits for it wakes up late.
So several images are written in one call, without the lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.kernels.compiled import extending, ir, types, unlocked_kernel
from runtime.kernels.memory import end_of_writes

# Pixels that are split at once; what is written has to be aligned by as many bytes.
_PIXELS = 16
_AT_ONCE = np.uint64(_PIXELS)
_ONE, _TWO, _THREE = np.uint64(1), np.uint64(2), np.uint64(3)

Plane = NDArray[np.uint8]
"""The pixels of an image, or one color of them, as a flat array."""


def _color_splitter(mirrored: bool) -> Any:
    byte, index = ir.IntType(8), ir.IntType(32)

    @extending.intrinsic
    def split(context: Any, pixels: Any, red: Any, green: Any, blue: Any) -> Any:
        """Write the colors of pixels past the caches: addresses (``uint64``), in a kernel."""

        def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            taken = ir.VectorType(byte, 3 * _PIXELS)
            written = ir.VectorType(byte, _PIXELS)
            source = builder.load(builder.inttoptr(arguments[0], taken.as_pointer()), align=1)
            once = builder.module.add_metadata([ir.Constant(index, 1)])
            for color, address in enumerate(arguments[1:]):
                places = [3 * pixel + color for pixel in range(_PIXELS)]
                chosen = places[::-1] if mirrored else places
                mask = ir.Constant(ir.VectorType(index, _PIXELS), chosen)
                numbers = builder.shuffle_vector(source, ir.Constant(taken, ir.Undefined), mask)
                place = builder.inttoptr(address, written.as_pointer())
                store = builder.store(numbers, place, align=_PIXELS)
                store.set_metadata("nontemporal", once)
            return target.get_dummy_value()

        return types.none(*[types.uint64] * 4), generate

    return split


_split_some, _split_some_mirrored = _color_splitter(False), _color_splitter(True)


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
            _split_some(source + _THREE * i, red + i, green + i, blue + i)
        return
    for row in range(np.uint64(0), size, width):
        # In the order of what is written, so that whole cache lines of it are complete soon.
        for to in range(row, row + width, _AT_ONCE):
            i = row + (row + width - _AT_ONCE - to)
            _split_some_mirrored(source + _THREE * i, red + to, green + to, blue + to)


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
