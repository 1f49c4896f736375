"""Several record sets as one, for ``--rec A --rec B``.

Identities of different sets are different people: the classes of a set are numbered after those of
the sets before it. So are the images: one permutation draws from each set in proportion to its
size, and users of the sets need not know that there are several.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.records.record_set import LabeledRecords, RecordSet
from data.records.recordio import Payload
from runtime.errors import DataError


class JoinedSet(LabeledRecords):
    """Record sets one after another; ``path`` names all of them."""

    def __init__(self, sets: Sequence[RecordSet]) -> None:
        """Join open sets.

        Raises:
            DataError: their images differ in size.
        """
        self._sets = sets
        self.image_size = sets[0].image_size
        for other in sets[1:]:
            if other.image_size != self.image_size:
                (height, width), (other_height, other_width) = self.image_size, other.image_size
                raise DataError(
                    f"{sets[0].path} has images of {height} x {width} pixels, {other.path} of "
                    f"{other_height} x {other_width}; pack them anew at one size, or train on one"
                )
        self.path = " + ".join(str(member.path) for member in sets)
        # Where the images and the classes of each set begin.
        self._starts = [0, *accumulate(len(member) for member in sets)]
        self._first_classes = [0, *accumulate(member.num_classes for member in sets)]
        self.num_classes = self._first_classes[-1]

    def __len__(self) -> int:
        return self._starts[-1]

    @override
    def image(self, index: int) -> tuple[Payload, int]:
        number, index = self._locate(index)
        payload, label = self._sets[number].image(index)
        return payload, self._first_classes[number] + label

    @override
    def images(
        self, indices: NDArray[np.int32]
    ) -> tuple[list[Optional[NDArray[np.uint8]]], NDArray[np.int32]]:
        payloads: list[Optional[NDArray[np.uint8]]] = [None] * len(indices)
        labels = np.empty(len(indices), np.int32)
        members = np.searchsorted(self._starts, indices, side="right") - 1
        for number in np.unique(members).tolist():
            positions = np.flatnonzero(members == number)
            own, classes = self._sets[number].images(indices[positions] - self._starts[number])
            labels[positions] = classes + self._first_classes[number]
            for position, payload in zip(positions.tolist(), own):
                payloads[position] = payload
        return payloads, labels

    @override
    def where(self, index: int) -> str:
        number, index = self._locate(index)
        return self._sets[number].where(index)

    @override
    def labels(self) -> NDArray[np.int32]:
        labels = np.empty(len(self), np.int32)
        for number, member in enumerate(self._sets):
            own = labels[self._starts[number] : self._starts[number + 1]]
            own[:] = member.labels()
            own[own >= 0] += self._first_classes[number]
        return labels

    def _locate(self, index: int) -> tuple[int, int]:
        """Return the number of the set that holds an image, and the image's index in it."""
        number = bisect_right(self._starts, index) - 1
        return number, index - self._starts[number]
