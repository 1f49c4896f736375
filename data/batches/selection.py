"""Which images of a set are trained on, in which order, and how often each comes in an epoch.

``--min-images`` leaves out identities. ``--class-balance`` lets those of small classes come more
often: sets of faces have a long tail of people with few images, which the others outvote (Kang et
al., "Decoupling Representation and Classifier for Long-Tailed Recognition", ICLR 2020, section 3.1,
whose q is 1 - alpha: 0 draws images alike, 1 classes, 0.5 is square-root sampling).

The images of a batch are found when it is asked for, so that no list of all images is in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from data.batches.order import permuted, unit
from data.image_interface import LabeledRecords
from runtime.errors import DataError
from runtime.kernels import unlocked_kernel

_log = logging.getLogger("data")

# Images after which the sum of all weights is noted.
_BLOCK_IMAGES = 256


class Selection:
    """The images that are trained on, each known by its index in the set.

    Attributes:
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
        self._dataset = dataset
        self._total = self._count = len(dataset)
        self._classes: Optional[NDArray[np.int32]] = None
        self._weighted: Optional[_WeightedImages] = None
        self.num_classes = dataset.num_classes
        if not min_images and not class_balance:
            return
        # Images of each class; unreadable ones are of none.
        counts = np.zeros(dataset.num_classes, np.int32)
        for _, own in dataset.label_chunks():
            _count_labels(counts, own)
        unreadable = self._total - int(counts.sum())
        if unreadable:
            chunks = dataset.label_chunks()
            first = next(start + int(np.argmin(own)) for start, own in chunks if own.min() < 0)
            _log.warning(
                "%s: %d of %d records are unreadable and left out, the first is %s",
                *(dataset.path, unreadable, self._total, dataset.where(first)),
            )
        if min_images:
            self._choose(counts, min_images)
        if not counts.any():
            raise DataError(f"{dataset.path}: no image has a readable label; copy the set again")
        self._weighted = _WeightedImages(dataset, counts, class_balance, self._count)

    def __len__(self) -> int:
        return self._count

    def order(self, keys: NDArray[np.uint64], first: int, count: int) -> NDArray[np.int64]:
        """Return some images of an epoch's order, int64 ``[count]``.

        Without ``class_balance`` each chosen image comes once in ``len(self)`` places; with it
        some come several times, and others not at all.

        Args:
            keys: of the epoch (``order.epoch_keys``).
            first: place of the first in the order.
            count: how many.
        """
        assert 0 <= first and first + count <= self._count, (first, count, self._count)
        numbers: NDArray[np.int64] = permuted(first, count, keys, self._count)
        return numbers if self._weighted is None else self._weighted.images(numbers, keys[-1])

    def new_number(self, label: int) -> int:
        """Return the new number of a class of the set, -1 for one that is left out."""
        return label if self._classes is None else int(self._classes[label])

    def of_classes(self, start: int, stop: int) -> Iterator[NDArray[np.int64]]:
        """Yield the images of the classes ``[start, stop)``, by their new numbers, in pieces."""
        for first, own in self._dataset.label_chunks():
            # Unreadable images (-1) are of no class.
            numbers = own if self._classes is None else self._classes[own]
            classes = np.where(own < 0, -1, numbers)
            yield np.flatnonzero((classes >= start) & (classes < stop)) + first

    def following(self, index: int) -> int:
        """Return the first chosen image after ``index``; after the last comes the first."""
        while True:
            index = (index + 1) % self._total
            if self._classes is None:
                return index
            label = int(self._dataset.labels_between(index, index + 1)[0])
            if label >= 0 and self._classes[label] >= 0:
                return index

    def _choose(self, counts: NDArray[np.int32], least: int) -> None:
        """Leave out the classes with fewer images than ``least``: their ``counts`` become 0."""
        kept, path = counts >= least, self._dataset.path
        if not kept.any():
            raise DataError(
                f"{path}: no identity has {least} images or more; choose a smaller --min-images"
            )
        counts *= kept
        self._count, self.num_classes = int(counts.sum()), int(kept.sum())
        # In place: of a hundred million classes, each of these takes 400 MB.
        self._classes = np.cumsum(kept, dtype=np.int32)
        self._classes *= kept
        self._classes -= 1
        _log.info(
            "%s: kept the %d identities (%d images) with %d images or more of %d (%d)",
            *(path, self.num_classes, self._count, least, len(counts), self._total),
        )


class _WeightedImages:
    """Draws as many images as an epoch has, each as often as its class's weight says on average.

    Stratified: the weights of all images, laid side by side on a line, are hit by one random point
    in each of as many equal pieces of the line as are drawn. So an image with weight w (of pieces)
    comes w times on average, as if each draw were independent, but never misses or exceeds that by
    2 or more. Where all weights are equal, each chosen image comes once, in the middle of a piece.
    """

    def __init__(
        self,
        dataset: LabeledRecords,
        counts: NDArray[np.int32],
        class_balance: float,
        count: int,
    ) -> None:
        """Look at all labels once.

        Args:
            dataset: all images.
            counts: images of each class of the set, 0 for one that is left out; not all are.
            class_balance: the power of the class's size that divides.
            count: images of an epoch.
        """
        self._dataset, self._is_balanced = dataset, class_balance > 0
        # That of label -1, an unreadable image, is the first.
        self._weights = np.zeros(len(counts) + 1, np.float32)
        np.power(
            counts, -class_balance,
            out=self._weights[1:], where=counts > 0, dtype=np.float32, casting="unsafe",
        )  # fmt: skip
        # The sum of the weights at the end of each block of images.
        self._ends = np.empty(-(-len(dataset) // _BLOCK_IMAGES))
        end = 0.0
        for start, own in dataset.label_chunks():
            end = _sum_weights(self._ends, start, end, own, self._weights)
        self._ends[-1] = end
        self._piece = end / count

    def images(self, pieces: NDArray[np.int64], key: np.uint64) -> NDArray[np.int64]:
        """Return the images that are hit in some pieces of the line, by their numbers."""
        places = pieces + 0.5
        if self._is_balanced:
            places = np.array([n + unit(np.uint64(n), key) for n in pieces.tolist()])
        # Rounding may bring a point to the end of all weights.
        points = np.minimum(places * self._piece, np.nextafter(self._ends[-1], 0.0))
        blocks = np.searchsorted(self._ends, points, side="right")
        return np.array([*map(self._find, blocks.tolist(), points.tolist())], np.int64)

    def _find(self, block: int, point: float) -> int:
        """Return the image at a point of the line that lies in a block of images."""
        start = block * _BLOCK_IMAGES
        labels = self._dataset.labels_between(start, start + _BLOCK_IMAGES)
        before = self._ends[block - 1] if block else 0.0
        # One after another, as in the sums of the blocks.
        sums = np.cumsum(np.append(before, self._weights[labels + 1]))[1:]
        return start + int(np.searchsorted(sums, point, side="right"))


@unlocked_kernel
def _count_labels(counts: NDArray[np.int32], labels: NDArray[np.int32]) -> None:
    for label in labels:
        if label >= 0:
            counts[label] += 1


@unlocked_kernel
def _sum_weights(
    ends: NDArray[np.float64],
    start: int,
    end: float,
    labels: NDArray[np.int32],
    weights: NDArray[np.float32],
) -> float:
    """Add the weights of images from ``start`` on to ``end``; note the sum after each block."""
    for i in range(labels.size):
        end += weights[labels[i] + 1]
        if (start + i + 1) % _BLOCK_IMAGES == 0:
            ends[(start + i) // _BLOCK_IMAGES] = end
    return end
