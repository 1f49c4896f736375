"""Several record sets as one, for ``--rec A --rec B`` and for sets of shards.

Identities of different sets are different people: the classes of a set are numbered after those of
the sets before it. So are the images: one permutation draws from each set in proportion to its
size, and users of the sets need not know that there are several.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Union

from typing_extensions import override

from data.records.label_table import LabelTable
from data.records.record_set import LabeledRecords, RecordSet
from data.records.recordio import Payload
from runtime.errors import DataError

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

    def __len__(self) -> int:
        return self._starts[-1]

    @override
    def image(self, index: int) -> tuple[Payload, int]:
        number, index = self._locate(index)
        payload, label = self.members[number].image(index)
        return payload, self.first_classes[number] + label

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
