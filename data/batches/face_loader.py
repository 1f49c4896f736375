"""Batches of faces to train on: from record sets, or made in memory.

Decoding must neither make the network wait nor affect what it is trained on. Threads decode into
the batches of the next updates, and all that is random depends on seed and update alone: the order
of an epoch is the same on every rank, an update's global batch is a slice of it, and each rank
reads its own rows. So a run sees the same samples with any number of threads, and the same global
batches on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np
from typing_extensions import override

from data.batches.loader import Batch, BrokenImages, Filling, Loader, empty_batch
from data.batches.order import epoch_keys
from data.batches.position import Position
from data.batches.selection import Selection
from data.decoding import Image, Resizer
from data.image_interface import LabeledRecords
from data.images.augmentation import OPTIONS, Augmentation
from data.options import FaceDataOptions
from data.records.recordio import BrokenRecordError
from runtime import environment

# The first number of every seed, so that no two uses share their random numbers.
_SHUFFLE, _CHANGE, _LABELS = range(3)
_MIRRORED_SHARE = 0.5


class FaceLoader(Loader):
    """Endless batches from record sets, decoded by threads ahead of their use.

    Attributes:
        num_classes: the classes of the labels, without those that ``min_images`` leaves out.
        image_size: height and width.
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
        """Start the threads; they have nothing to do until ``batches`` is called.

        Args:
            dataset: the images.
            options: batch size, threads, augmentation, and which images are left out.
            rank: this process among the ``world_size`` ranks that share each global batch.
            world_size: how many they are.
            seed: of the order of images, mirroring and augmentation; the same on all ranks.

        Raises:
            DataError: there are fewer images than one global batch.
        """
        assert 0 <= rank < world_size and options.batch_size > 0
        self.images, self._seed = dataset, seed
        self._rows = slice(rank * options.batch_size, (rank + 1) * options.batch_size)
        strengths = {name: getattr(options, name) for name in OPTIONS}
        self._augmentation = Augmentation({**strengths, "mirror": _MIRRORED_SHARE})
        self._selection = Selection(dataset, options.min_images, options.class_balance)
        self.num_classes = self._selection.num_classes
        self.image_size = dataset.image_size
        self._shape = (3, *self.image_size)
        self._broken = BrokenImages(options.max_bad_records, len(self._selection))
        self._resizer = Resizer(self.image_size)
        super().__init__(options.threads or environment.visible_threads())
        global_batch = options.batch_size * world_size
        self._set_length(str(dataset.path), len(self._selection), global_batch)

    def images_of(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the images of the classes ``[start, stop)`` once, as they are, in the set's order.

        The last batch is shorter. An image that cannot be read counts for class -1.

        Raises:
            DataError: too many images cannot be read.
        """

        def load(_: int, index: int) -> tuple[Optional[Image], int]:
            return self._broken.skip(index, self._decode, -1)

        size = self._rows.stop - self._rows.start
        pieces = (
            indices[first : first + size]
            for indices in self._selection.of_classes(start, stop)
            for first in range(0, len(indices), size)
        )
        return self.run(empty_batch(self._shape, len(one), one, load) for one in pieces)

    @override
    def _filling(self, update: int, position: Position) -> Filling:
        first, count = self._rows.start, self._rows.stop - self._rows.start
        keys = epoch_keys(_SHUFFLE, self._seed, position.epoch)
        indices = self._selection.order(keys, position.samples + first, count)
        # Here, not in the threads, of which several would draw the same.
        draws = self._augmentation.draw((_CHANGE, self._seed, update), first, count)

        def load(row: int, index: int) -> tuple[Image, int]:
            image, label = self._broken.replace(index, self._decode, self._selection.following)
            return self._augmentation.apply(image, draws, row), label

        return empty_batch(self._shape, count, indices, load)

    def _decode(self, index: int) -> tuple[Image, int]:
        """Return an image in the size of the set, and the new number of its class."""
        image, label = self.images.decoded(index)
        number = self._selection.new_number(label)
        if number < 0:
            raise BrokenRecordError(
                f"{self.images.where(index)}: its label is {label}, which --min-images leaves "
                "out, but its identity record says another class"
            )
        if image.shape[:2] != self.image_size:
            image = self._resizer.fit(image, self.images.where(index))
        return image, number


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
        assert 0 <= rank < world_size and batch_size > 0 and num_classes > 0
        self.num_classes, self.image_size = num_classes, image_size
        self._seed = seed
        self._rows = slice(rank * batch_size, (rank + 1) * batch_size)
        rng = np.random.default_rng((_CHANGE, seed, rank))
        self._images = rng.integers(0, 256, (batch_size, 3, *image_size), np.uint8)
        global_batch = batch_size * world_size
        super().__init__(threads=1)
        self._set_length("memory", max(num_classes, global_batch), global_batch)

    @override
    def _filling(self, update: int, position: Position) -> Filling:
        rng = np.random.default_rng((_LABELS, self._seed, update))
        labels = rng.integers(0, self.num_classes, self.global_batch)
        return Batch(self._images, labels[self._rows]), lambda rows: None
