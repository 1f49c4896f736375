"""Several record sets as one, for ``--rec A --rec B`` and for sets of shards.

Identities of different sets are different people: the classes of a set are numbered after those of
the sets before it. So are the images: one permutation draws from each set in proportion to its
size, and users of the sets need not know that there are several.

A batch takes images from as many files as it has images, if there are thousands. So a table of all
files says where each begins and where it is in memory, and compiled code finds all images in it.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.headers import may_turn
from data.records.index import offset_of
from data.records.label_table import LabelTable
from data.records.record_set import Jpegs, LabeledRecords, RecordSet, find_jpeg
from data.records.recordio import Payload
from runtime.errors import DataError
from runtime.kernels.compiled import unlocked_kernel
from runtime.kernels.memory import array_at

_WORD_BYTES = 4
# Files of which more than the size is compared: to read blocks of each of thousands takes long.
_DESCRIBED = 8


class JoinedSet(LabeledRecords):
    """Record sets one after another; ``path`` names all of them.

    Attributes:
        members: the files of all sets.
        first_classes: the number of each file's class 0.
    """

    path: Union[Path, str]

    def __init__(self, sets: Sequence[Union[RecordSet, JoinedSet]]) -> None:
        """Join open sets.

        Raises:
            DataError: their images differ in size.
        """
        for other in sets[1:]:
            if other.image_size != sets[0].image_size:
                (height, width), (other_height, other_width) = sets[0].image_size, other.image_size
                raise DataError(
                    f"{sets[0].path} has images of {height} x {width} pixels, {other.path} of "
                    f"{other_height} x {other_width}; pack them anew at one size, write one "
                    "size into each property (images are resized), or train on one"
                )
        self.path = " + ".join(str(one.path) for one in sets)
        members: list[RecordSet] = []
        first_classes: list[int] = []
        num_classes = 0
        for one in sets:
            own = one.first_classes if isinstance(one, JoinedSet) else [0]
            members += one.members if isinstance(one, JoinedSet) else [one]
            first_classes += [num_classes + first for first in own]
            num_classes += one.num_classes
        self._join(members, first_classes, num_classes)

    def _join(
        self, members: Sequence[RecordSet], first_classes: Sequence[int], num_classes: int
    ) -> None:
        self.members, self.first_classes, self.num_classes = members, first_classes, num_classes
        self.image_size = members[0].image_size
        self._starts = [0, *accumulate(map(len, members))]
        # What compiled code needs of each file: see _find_jpegs.
        self._table = tuple(
            np.array(column, dtype)
            for column, dtype in (
                (self._starts, np.int64),
                (first_classes, np.int64),
                ([member.num_classes for member in members], np.int64),
                ([len(member.file) for member in members], np.int64),
                ([member.file.words.ctypes.data for member in members], np.uint64),
                ([member.index.low.ctypes.data for member in members], np.uint64),
                ([member.index.high.ctypes.data for member in members], np.uint64),
            )
        )

    def __len__(self) -> int:
        return self._starts[-1]

    @override
    def image(self, index: int) -> tuple[Payload, int]:
        number, index = self._locate(index)
        payload, label = self.members[number].image(index)
        return payload, self.first_classes[number] + label

    @override
    def jpegs(self, indices: NDArray[np.int64]) -> Jpegs:
        return Jpegs(*_find_jpegs(indices, self._table))

    @override
    def where(self, index: int) -> str:
        number, index = self._locate(index)
        return self.members[number].where(index)

    @override
    def label_table(self) -> LabelTable:
        members = self.members
        lengths = [len(member) for member in members]
        return LabelTable([member.labels for member in members], lengths, self.first_classes)

    @override
    def fingerprint(self) -> str:
        step = -(-len(self.members) // _DESCRIBED)
        parts = [str(len(member.file)) for member in self.members]
        parts += [member.fingerprint() for member in self.members[::step]]
        return f"{len(self.members)} files, checksum {zlib.crc32(' '.join(parts).encode()):08x}"

    def _locate(self, index: int) -> tuple[int, int]:
        """Return the number of the file that holds an image, and the image's index in it."""
        number = bisect_right(self._starts, index) - 1
        return number, index - self._starts[number]


@unlocked_kernel
def _find_jpegs(
    indices: NDArray[np.int64], table: Any
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int32]]:
    """Find images of many files, without Python's lock.

    Args:
        indices: of the images, int64 ``[n]``.
        table: of each file the index of its first image, the number of its first class, how many
            classes and bytes it has, and where in memory its words and the two halves of its
            index are. The first has one element more, the number of all images.

    Returns:
        What ``Jpegs`` has.
    """
    first_images, first_classes, num_classes, file_sizes, words_at, low_at, high_at = table
    addresses = np.zeros(indices.size, np.uint64)
    sizes = np.zeros(indices.size, np.int64)
    labels = np.zeros(indices.size, np.int32)
    for i in range(indices.size):
        number = np.searchsorted(first_images, indices[i], side="right") - 1
        image, images = (
            indices[i] - first_images[number],
            first_images[number + 1] - first_images[number],
        )
        low = array_at(low_at[number], images, np.uint32)
        high = array_at(high_at[number], images, np.uint16)
        file_size = file_sizes[number]
        words = array_at(words_at[number], file_size // _WORD_BYTES, np.uint32)
        start, stop, label = find_jpeg(
            words, file_size, offset_of(low, high, image), num_classes[number]
        )
        content = array_at(words_at[number], file_size, np.uint8)
        if stop and not may_turn(content, start, stop):
            addresses[i], sizes[i] = words_at[number] + np.uint64(start), stop - start
        labels[i] = first_classes[number] + label
    return addresses, sizes, labels
