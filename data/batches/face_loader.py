"""Batches of faces to train on: from record sets, or made in memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from data.batches.image_loader import ImageLoader, in_turn
from data.batches.loader import Batch, Filling, Loader
from data.batches.position import EpochPart, Position
from data.batches.selection import Faces
from data.image_interface import LabeledRecords
from data.images.transforms import Unchanged
from data.options import FaceDataOptions
from runtime import environment

# The first number of every seed, so that no two uses share their random numbers. An order of images
# has 0.
_IMAGES, _LABELS = 1, 2


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
        unchanged, size = copy.copy(self._faces), self._batch_size
        unchanged.transform = Unchanged()
        pieces = (
            indices[first : first + size]
            for indices in unchanged.of_classes(start, stop)
            for first in range(0, len(indices), size)
        )
        return in_turn(unchanged, self, pieces)


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
