"""What happens to every record and every image of a batch, compiled.

The threads that decode take turns at Python's lock, and who waits for it wakes up late. So the
headers of a batch's records are read in one call, and several images reach their places in the
batch in another, both without the lock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data.images.decoding import Image
from data.records.recordio import FLAG_WORD, LABEL_WORD, LENGTH_WORD, MAGIC, MAX_LENGTH
from runtime.compiled import unlocked_kernel

_FRAME_BYTES, _WORD_BYTES = 8, 4
# Where the payload of a record with one label begins, and how, if it is a JPEG.
_PAYLOAD_WORD, _JPEG = 8, 0xD8FF
_ONE, _TWO, _THREE = np.uint64(1), np.uint64(2), np.uint64(3)

Plane = NDArray[np.uint8]
"""The numbers of an image, or of one color of it, one behind the other."""

IMAGES_AT_ONCE = 8
"""What ``write_planes`` takes. More would not stay in the cache until they are written."""


@unlocked_kernel
def find_plain(
    words: NDArray[np.uint32], size: int, offsets: NDArray[np.int64], num_classes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Find the payloads of records of the usual form: one part, one label, a JPEG.

    Args:
        words: the file, uint32 ``[size // 4]``.
        size: of the file in bytes.
        offsets: of the records, multiples of 4; they may point anywhere.
        num_classes: labels are whole numbers from 0 to below it.

    Returns:
        Where each payload starts and stops, in bytes, and its label. It stops at 0 if the record is
        none of these, or broken.
    """
    floats = words.view(np.float32)
    starts = np.zeros(offsets.size, np.int64)
    stops = np.zeros(offsets.size, np.int64)
    labels = np.zeros(offsets.size, np.int32)
    for i in range(offsets.size):
        first = offsets[i] // _WORD_BYTES
        if first < 0 or first + _PAYLOAD_WORD >= words.size:
            continue
        length = np.int64(words[first + LENGTH_WORD])
        start = offsets[i] + _PAYLOAD_WORD * _WORD_BYTES
        stop = offsets[i] + _FRAME_BYTES + length
        label = floats[first + LABEL_WORD]
        if (
            words[first] == MAGIC
            and words[first + FLAG_WORD] == 0
            and words[first + _PAYLOAD_WORD] & 0xFFFF == _JPEG
            and length <= MAX_LENGTH
            and start < stop <= size
            and 0 <= label < num_classes
            and label == np.floor(label)
        ):
            starts[i], stops[i], labels[i] = start, stop, np.int32(label)
    return starts, stops, labels


@unlocked_kernel
def write_planes(
    images: tuple[Image, ...], planes: NDArray[np.uint8], mirrored: NDArray[np.bool_]
) -> None:
    """Write images in the layout of the networks.

    Args:
        images: ``IMAGES_AT_ONCE`` of uint8 ``[height, width, 3]``, contiguous; those beyond the
            first n make no difference.
        planes: uint8 ``[n, 3, height, width]``, contiguous; receives the first n images.
        mirrored: bool ``[n]``, whether left and right of an image are exchanged.

    Raises:
        ValueError: an image has another number of pixels.
    """
    width = np.uint64(planes.shape[3])
    size = planes.shape[2] * planes.shape[3]
    for i in range(len(planes)):
        pixels, written = images[i].reshape(3 * size), planes[i].reshape(3 * size)
        red, green, blue = written[:size], written[size : 2 * size], written[2 * size :]
        if mirrored[i]:
            _split_mirrored(pixels, red, green, blue, width)
        else:
            _split(pixels, red, green, blue)


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
