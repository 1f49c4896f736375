"""Several record sets as one, for ``--rec A --rec B``.

Identities of different sets are different people: their classes are numbered behind one another.
The images are, too, so that one permutation draws from each set in proportion to its size, and who
uses the sets need not know that there are several.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from data.records.record_set import RecordSet
from data.records.recordio import Payload
from runtime.errors import DataError


class JoinedSet:
    """Record sets behind one another; the same interface as one of them.

    Attributes:
        path: the paths of all sets, for messages.
        num_classes: of all sets together.
        image_size: height and width, the same in all sets.
    """

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
        """Return the number of images."""
        return self._starts[-1]

    def image(self, index: int) -> tuple[Payload, int]:
        """Return an image, still encoded, and its class; see ``RecordSet.image``."""
        number, index = self._locate(index)
        payload, label = self._sets[number].image(index)
        return payload, self._first_classes[number] + label

    def images(
        self, indices: NDArray[np.int32]
    ) -> tuple[list[Optional[NDArray[np.uint8]]], NDArray[np.int32]]:
        """Return many images and their classes; see ``RecordSet.images``."""
        payloads: list[Optional[NDArray[np.uint8]]] = [None] * len(indices)
        labels = np.empty(len(indices), np.int32)
        members = np.searchsorted(self._starts, indices, side="right") - 1
        for number in np.unique(members).tolist():
            places = np.flatnonzero(members == number)
            own, classes = self._sets[number].images(indices[places] - self._starts[number])
            labels[places] = classes + self._first_classes[number]
            for place, payload in zip(places.tolist(), own):
                payloads[place] = payload
        return payloads, labels

    def where(self, index: int) -> str:
        """Name the file and the record of an image, for messages."""
        number, index = self._locate(index)
        return self._sets[number].where(index)

    def labels(self) -> NDArray[np.int32]:
        """Return the class of every image; see ``RecordSet.labels``."""
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
