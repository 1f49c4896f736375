"""Which images of a set are trained on, and how often each comes in an epoch.

``--min-images`` leaves out identities. ``--class-balance`` lets those of small classes come more
often: sets of faces have a long tail of people with few images, which the others outvote (Kang et
al., "Decoupling Representation and Classifier for Long-Tailed Recognition", ICLR 2020, section 3.1,
whose q is 1 - alpha: 0 draws images alike, 1 classes, 0.5 is square-root sampling).
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
    """The images that are trained on, each known by its index in the set.

    ``--min-images`` leaves out identities, and with them images all over the set. A list of the
    images that are left would take as much memory as the order of an epoch; here each takes a bit.

    Attributes:
        classes: int32, for each class of the set its new number, -1 if it is left out.
        num_classes: how many classes are left.
    """

    def __init__(
        self, dataset: LabeledRecords, min_images: int, class_balance: float = 0.0
    ) -> None:
        """Choose the images of all identities that have at least ``min_images``.

        The identities that are left get new consecutive numbers. With ``min_images`` 0 all images
        are chosen, without looking up their labels.

        Args:
            dataset: the images.
            min_images: of an identity that is kept.
            class_balance: the power of (images of the class) that an image's share of an epoch is
                divided by; with 0 each image comes once.

        Raises:
            DataError: no identity has as many images.
        """
        self._total = self._count = len(dataset)
        self._bits: Optional[NDArray[np.uint8]] = None
        self.num_classes = dataset.num_classes
        self.classes = np.arange(dataset.num_classes, dtype=np.int32)
        if min_images:
            self._choose(dataset, min_images)
        self._drawn: Optional[_WeightedImages] = None
        if class_balance:
            self._drawn = _WeightedImages(dataset, self.classes, class_balance)

    def __len__(self) -> int:
        return self._count

    def shuffled(self, rng: np.random.Generator) -> NDArray[np.int32]:
        """Return the chosen images in a random order, int32 ``[len(self)]``.

        With ``class_balance`` some come several times, and others not at all.
        """
        if self._drawn is not None:
            order = self._drawn.draw(self._count, rng)
        elif self._bits is None:
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

    def of_classes(
        self, dataset: LabeledRecords, start: int, stop: int
    ) -> Iterator[NDArray[np.int32]]:
        """Yield the images of the classes ``[start, stop)``, by their new numbers, in pieces."""
        labels = dataset.labels()
        for chunk in _chunks(self._total):
            own = labels[chunk]
            # Unreadable images (-1) are of no class.
            classes = np.where(own < 0, -1, self.classes[own])
            chosen = np.flatnonzero((classes >= start) & (classes < stop))
            yield (chosen + chunk.start).astype(np.int32)

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


class _WeightedImages:
    """Draws as many images as an epoch has, each as often as its class's weight says on average."""

    def __init__(
        self, dataset: LabeledRecords, classes: NDArray[np.int32], class_balance: float
    ) -> None:
        """Look up the labels, which take 4 bytes per image.

        Args:
            dataset: the images.
            classes: for each class of the set its new number, -1 if it is left out.
            class_balance: the power of the class's size that divides.

        Raises:
            DataError: no label is readable.
        """
        self._labels = dataset.labels()
        counts = np.zeros(dataset.num_classes + 1, np.int64)
        for chunk in _chunks(len(self._labels)):
            counts += np.bincount(self._labels[chunk] + 1, minlength=len(counts))
        # Unreadable images (-1) and those that are left out are not drawn.
        counts[0] = 0
        counts[1:][classes < 0] = 0
        self._weights = np.zeros(len(counts))
        np.power(counts, -class_balance, out=self._weights, where=counts > 0, dtype=np.float64)
        self._sum = float((self._weights * counts).sum())
        if not self._sum:
            raise DataError(f"{dataset.path}: no image has a readable label; copy the set again")

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int32]:
        """Return images in the order of the set, int32 ``[count]``.

        Stratified: the weights of all images, laid side by side on a line of length ``count``, are
        hit by one random point in each piece of length 1. So an image with weight w comes w times
        on average, as if each draw were independent, but never misses or exceeds that by 2 or more.
        """
        order, filled, drawn, end = np.empty(count, np.int32), 0, 0, 0.0
        points = np.empty(0)
        for chunk in _chunks(len(self._labels)):
            ends = end + np.cumsum(self._weights[self._labels[chunk] + 1] * (count / self._sum))
            end = float(ends[-1])
            next_drawn = min(int(end) + 1, count)
            fresh = np.arange(drawn, next_drawn) + rng.random(next_drawn - drawn)
            points, drawn = np.concatenate([points, fresh]), next_drawn
            inside = int(np.searchsorted(points, end))
            found = chunk.start + np.searchsorted(ends, points[:inside], side="right")
            order[filled : filled + inside] = found
            filled, points = filled + inside, points[inside:]
        # Rounding may leave a point beyond the end of all weights.
        order[filled:] = order[filled - 1]
        return order


def _chunks(total: int) -> Iterator[slice]:
    return (slice(start, min(start + _CHUNK, total)) for start in range(0, total, _CHUNK))
