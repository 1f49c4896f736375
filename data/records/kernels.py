"""Finding the images of many records in one call, compiled.

The threads that decode take turns at Python's lock, and a thread that waits for it wakes up late.
So the headers of a batch's records are read without the lock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data.records.recordio import FLAG_WORD, LABEL_WORD, LENGTH_WORD, MAGIC, MAX_LENGTH
from runtime.compiled import unlocked_kernel

_FRAME_BYTES, _WORD_BYTES = 8, 4
# Where the payload of a record with one label begins, and how, if it is a JPEG.
_PAYLOAD_WORD, _JPEG = 8, 0xD8FF


@unlocked_kernel
def find_jpegs(
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
