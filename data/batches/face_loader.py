"""Batches of faces to train on: from record sets, or made in memory.

``--min-images`` leaves out identities. ``--class-balance`` lets those of small classes come more
often: sets of faces have a long tail of people with few images, which the others outvote (Kang et
al., "Decoupling Representation and Classifier for Long-Tailed Recognition", ICLR 2020, section 3.1,
whose q is 1 - alpha: 0 draws images alike, 1 classes, 0.5 is square-root sampling).

The images of a batch are found when it is asked for, so that no list of all images is in memory.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.batches.image_loader import ImageLoader, TransformedImages, each_once
from data.batches.loader import Batch, Filling, Loader
from data.batches.order import unit
from data.batches.position import EpochPart, Position
from data.decoding import Image, fit_to
from data.image_interface import LabeledRecords
from data.images.transforms import CHANGES_OF_FACES, Augmentation, Unchanged
from data.options import FaceDataOptions
from data.records.recordio import BrokenRecordError
from runtime import environment
from runtime.errors import DataError
from runtime.kernels import unlocked_kernel

_log = logging.getLogger("data")

# The first number of every seed, so that no two uses share their random numbers. An order of images
# has 0.
_IMAGES, _LABELS = 1, 2
_MIRRORED_SHARE = 0.5
# Images after which the sum of all weights is noted.
_BLOCK_IMAGES = 256


class FaceLoader(ImageLoader):
    """Endless batches from record sets, decoded by threads ahead of their use.

    Attributes:
        images: all of the set, also those that ``min_images`` leaves out.
    """

    def __init__(
        self,
        dataset: LabeledRecords,
        options: FaceDataOptions,
        *,
        rank: int,
        world_size: int,
        seed: int,
    ) -> None:
        """Read what one of ``world_size`` ranks has of each global batch; see ``ImageLoader``."""
        self.images, self._faces = dataset, Faces(dataset, options)
        count = len(self._faces)
        super().__init__(
            self._faces,
            batch_size=options.batch_size,
            epoch_part=EpochPart.of_rank(count, options.batch_size, rank, world_size),
            seed=seed,
            threads=options.threads or environment.visible_threads(),
        )

    def images_of(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the images of the classes ``[start, stop)`` once, as they are, in the set's order.

        The last batch is shorter. An image that cannot be read has the label ``BROKEN``.

        Raises:
            DataError: too many images cannot be read.
        """
        unchanged = copy.copy(self._faces)
        unchanged.transform = Unchanged()
        chunks = unchanged.of_classes(start, stop)
        return each_once(unchanged, self, chunks, self._batch_size, fills_up=False)


class MemoryBatches(Loader):
    """Batches without reading or decoding: shows how fast a run is when input costs nothing.

    The images are made once; the labels are uniform over all classes, so that every rank of a
    sharded head has positives as in a real run. An epoch has as many images as there are
    identities, but at least a global batch.

    Attributes:
        num_classes: the classes of the labels.
        image_size: height and width.
    """

    def __init__(
        self,
        num_classes: int,
        image_size: tuple[int, int],
        batch_size: int,
        rank: int,
        world_size: int,
        seed: int,
    ) -> None:
        """Make the images of this rank; ``seed`` is the same on all ranks."""
        self.num_classes, self.image_size = num_classes, image_size
        rng = np.random.default_rng((_IMAGES, seed, rank))
        self._images = rng.integers(0, 256, (batch_size, 3, *image_size), np.uint8)
        count = max(num_classes, batch_size * world_size)
        part = EpochPart.of_rank(count, batch_size, rank, world_size)
        super().__init__(part, batch_size, seed, threads=1)

    @override
    def _filling(self, update: int, position: Position) -> Filling:
        rng = np.random.default_rng((_LABELS, self._seed, update))
        labels = rng.integers(0, self.num_classes, self.global_batch)
        first = self._epoch_part.offset
        return Batch(self._images, labels[first : first + self._batch_size]), lambda rows: None


class Faces(TransformedImages):
    """The faces that are trained on, in the size of their set and changed at random."""

    dataset: LabeledRecords

    def __init__(self, dataset: LabeledRecords, options: FaceDataOptions) -> None:
        """Choose the images of all identities that have at least ``options.min_images``.

        The identities that are left get new consecutive numbers. Without ``min_images`` and
        ``class_balance`` all images are chosen, without looking up their labels.

        Raises:
            DataError: no identity has as many images.
        """
        strengths = {name: getattr(options, name) for name in CHANGES_OF_FACES}
        changes = Augmentation({**strengths, "mirror": _MIRRORED_SHARE})
        super().__init__(dataset, changes, (3, *dataset.image_size), options.max_bad_records)
        self._classes: Optional[NDArray[np.int32]] = None
        self._weighted: Optional[_WeightedImages] = None
        if not options.min_images and not options.class_balance:
            return
        # Images of each class; unreadable ones are of none.
        counts = np.zeros(dataset.num_classes, np.int32)
        for _, own in dataset.label_chunks():
            _count_labels(counts, own)
        if unreadable := len(dataset) - int(counts.sum()):
            _log.warning(
                "%s: %d of %d records are unreadable and left out",
                *(dataset.path, unreadable, len(dataset)),
            )
        if options.min_images:
            self._choose(counts, options.min_images)
        if not counts.any():
            raise DataError(f"{dataset.path}: no image has a readable label; copy the set again")
        self._weighted = _WeightedImages(dataset, counts, options.class_balance, len(self))

    @override
    def order(self, keys: NDArray[np.uint64], first: int, count: int) -> NDArray[np.int64]:
        numbers = super().order(keys, first, count)
        return numbers if self._weighted is None else self._weighted.images(numbers, keys[-1])

    @override
    def following(self, index: int) -> int:
        while True:
            index = super().following(index)
            if self._classes is None:
                return index
            label = int(self.dataset.labels_between(index, index + 1)[0])
            if label >= 0 and self._classes[label] >= 0:
                return index

    @override
    def decoded(self, index: int) -> tuple[Image, int]:
        image, label = self.dataset.decoded(index)
        number = label if self._classes is None else int(self._classes[label])
        if number < 0:
            raise BrokenRecordError(
                f"{self.dataset.where(index)}: its label is {label}, which --min-images leaves "
                "out, but its identity record says another class"
            )
        if image.shape[:2] != self.dataset.image_size:
            image = fit_to(image, self.dataset.image_size, self.dataset.where(index))
        return image, number

    def of_classes(self, start: int, stop: int) -> Iterator[NDArray[np.int64]]:
        """Yield the images of the classes ``[start, stop)``, by their new numbers, in pieces."""
        for first, own in self.dataset.label_chunks():
            # Unreadable images (-1) are of no class.
            numbers = own if self._classes is None else self._classes[own]
            classes = np.where(own < 0, -1, numbers)
            yield np.flatnonzero((classes >= start) & (classes < stop)) + first

    def _choose(self, counts: NDArray[np.int32], least: int) -> None:
        """Leave out the classes with fewer images than ``least``: their ``counts`` become 0."""
        kept, path = counts >= least, self.dataset.path
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
            *(path, self.num_classes, self._count, least, len(counts), len(self.dataset)),
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
        # The first weight belongs to label -1, an unreadable image.
        self._weights = np.zeros(len(counts) + 1, np.float32)
        np.power(
            counts, -class_balance,
            out=self._weights[1:], where=counts > 0, dtype=np.float32, casting="unsafe",
        )  # fmt: skip
        # The sum of the weights before each block of images, and at the end.
        self._sums = np.empty(-(-len(dataset) // _BLOCK_IMAGES) + 1)
        end = 0.0
        for start, own in dataset.label_chunks():
            sums = np.cumsum(np.append(end, self._weights[own + 1]))
            before = sums[-start % _BLOCK_IMAGES :: _BLOCK_IMAGES]
            block = -(-start // _BLOCK_IMAGES)
            self._sums[block : block + len(before)] = before
            end = sums[-1]
        self._sums[-1] = end
        self._piece = end / count

    def images(self, pieces: NDArray[np.int64], key: np.uint64) -> NDArray[np.int64]:
        """Return the images that are hit in some pieces of the line, by their numbers."""
        places = pieces + 0.5
        if self._is_balanced:
            places = np.array([n + unit(np.uint64(n), key) for n in pieces.tolist()])
        # Rounding may bring a point to the end of all weights.
        points = np.minimum(places * self._piece, np.nextafter(self._sums[-1], 0.0))
        blocks = np.searchsorted(self._sums[1:], points, side="right")
        return np.array([*map(self._find, blocks.tolist(), points.tolist())], np.int64)

    def _find(self, block: int, point: float) -> int:
        """Return the image at a point of the line that lies in a block of images."""
        start = block * _BLOCK_IMAGES
        labels = self._dataset.labels_between(start, start + _BLOCK_IMAGES)
        # One after another, as in the sums of the blocks.
        sums = np.cumsum(np.append(self._sums[block], self._weights[labels + 1]))[1:]
        return start + int(np.searchsorted(sums, point, side="right"))


@unlocked_kernel
def _count_labels(counts: NDArray[np.int32], labels: NDArray[np.int32]) -> None:
    for label in labels:
        if label >= 0:
            counts[label] += 1
