"""Which images of a set are trained on.

``--min-images`` leaves out identities, and with them images all over the set. A list of the images
that are left would take as much memory as the order of an epoch; here each image takes one bit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from data.records.record_set import LabeledRecords
from runtime.errors import DataError

_log = logging.getLogger("data")

# Images whose labels are counted at once, a multiple of 8; bounds the memory that it takes.
_CHUNK = 1 << 18


class Selection:
    """The chosen images, each known by its index in the set.

    Attributes:
        classes: int32, for each class of the set its new number, -1 if it is left out.
        num_classes: how many classes are left.
    """

    def __init__(self, dataset: LabeledRecords, min_images: int) -> None:
        """Choose the images of all identities that have at least ``min_images``.

        The identities that are left get new consecutive numbers. With ``min_images`` 0 all images
        are chosen, without looking up their labels.

        Raises:
            DataError: no identity has as many images.
        """
        self._total = self._count = len(dataset)
        self._bits: Optional[NDArray[np.uint8]] = None
        self.num_classes = dataset.num_classes
        self.classes = np.arange(dataset.num_classes, dtype=np.int32)
        if min_images:
            self._choose(dataset, min_images)

    def __len__(self) -> int:
        return self._count

    def shuffled(self, rng: np.random.Generator) -> NDArray[np.int32]:
        """Return the chosen images in a random order, int32 ``[len(self)]``."""
        if self._bits is None:
            order = np.arange(self._total, dtype=np.int32)
        else:
            order = np.empty(self._count, np.int32)
            filled = 0
            for chunk in _chunks(self._total):
                bits = np.unpackbits(self._bits[chunk.start // 8 : -(-chunk.stop // 8)])
                chosen = np.flatnonzero(bits) + chunk.start
                order[filled : filled + len(chosen)] = chosen
                filled += len(chosen)
        rng.shuffle(order)
        return order

    def following(self, index: int) -> int:
        """Return the first chosen image after ``index``; after the last comes the first."""
        while True:
            index = (index + 1) % self._total
            if self._bits is None or self._bits[index // 8] >> (7 - index % 8) & 1:
                return index

    def _choose(self, dataset: LabeledRecords, min_images: int) -> None:
        labels = dataset.labels()
        # Unreadable images (-1) count for an extra class before the others, which is never kept.
        counts = np.zeros(dataset.num_classes + 1, np.int64)
        for chunk in _chunks(self._total):
            counts += np.bincount(labels[chunk] + 1, minlength=len(counts))
        kept = counts >= min_images
        kept[0] = False
        if not kept.any():
            raise DataError(
                f"{dataset.path}: no identity has {min_images} images or more; choose a smaller "
                "--min-images"
            )
        self._bits = np.concatenate(
            [np.packbits(kept[labels[chunk] + 1]) for chunk in _chunks(self._total)]
        )
        self._count = int(counts[kept].sum())
        self.num_classes = int(kept.sum())
        self.classes = np.where(kept, np.cumsum(kept) - 1, -1)[1:].astype(np.int32)
        _log.info(
            "%s: kept the %d identities (%d images) with %d images or more of %d (%d)",
            dataset.path, self.num_classes, self._count, min_images,
            dataset.num_classes, self._total,
        )  # fmt: skip


def _chunks(total: int) -> Iterator[slice]:
    return (slice(start, min(start + _CHUNK, total)) for start in range(0, total, _CHUNK))
