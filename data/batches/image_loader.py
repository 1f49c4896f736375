"""Batches of images for a classifier: endless to train on, each once to test.

The order of an epoch is the same on every rank. An update's global batch is a slice of it and every
rank takes its own rows, or each has a share of the order for itself: as with faces, batches depend
on seed and update alone. To test, the
images are shared out over the ranks, each to exactly one; a last batch that is not full is filled
up with rows that nobody counts, so that batches are of one size on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from data.batches.epoch_part import EpochPart
from data.batches.loader import Batch, Filling, Loader, Prefetcher
from data.batches.position import Position
from data.images.decoding import Image
from data.images.image_set import ImageSet
from data.images.transforms import ImageTransform
from runtime.errors import DataError

# The first number of every seed, so that no two uses share their random numbers.
_SHUFFLE, _CHANGE = range(2)
_AHEAD = 4
NOBODY = -1
"""The label of a row that is there to fill a batch up."""


class ImageLoader(Loader):
    """Endless batches of images.

    Attributes:
        num_classes: the classes of the labels.
        image_size: height and width.
    """

    def __init__(
        self,
        dataset: ImageSet,
        transform: ImageTransform,
        *,
        shape: tuple[int, int, int],
        batch_size: int,
        epoch_part: EpochPart,
        seed: int,
        threads: int,
    ) -> None:
        """Start the threads; they have nothing to do until ``batches`` is called.

        Args:
            dataset: the set.
            transform: what is done to each image.
            shape: channels, height and width of what comes out of it.
            batch_size: images per rank and update.
            epoch_part: what this process reads of each epoch's order.
            seed: of the order of images and their changes; the same on all ranks.
            threads: how many make batches.

        Raises:
            DataError: there are fewer images than one global batch.
        """
        assert batch_size > 0
        self.num_classes, self.image_size = dataset.num_classes, shape[1:]
        self._dataset, self._transform, self._shape = dataset, transform, shape
        self._batch_size, self._seed = batch_size, seed
        super().__init__(threads=threads, ahead=_AHEAD)
        self.read(epoch_part)

    def read(self, epoch_part: EpochPart) -> None:
        """Read another part of each epoch's order, from the next call of ``batches`` on.

        Raises:
            DataError: there are fewer images than one global batch.
        """
        assert epoch_part.first + epoch_part.length <= len(self._dataset)
        self._epoch_part = epoch_part
        self._set_length(epoch_part.name, epoch_part.length, epoch_part.stride)

    def _filling(self, update: int, position: Position) -> Filling:
        epoch_part = self._epoch_part
        first = epoch_part.first + position.samples + epoch_part.offset
        indices = self._orders.rows(position.epoch, first, self._batch_size)
        rng = np.random.default_rng((_CHANGE, self._seed, update, *epoch_part.stream))
        own = slice(epoch_part.offset, epoch_part.offset + self._batch_size)
        draws = self._transform.draw(rng, self.global_batch)[own]
        return _from(self._dataset, self._transform, indices, draws, self._shape)

    def _shuffled(self, epoch: int) -> NDArray[np.int32]:
        order = np.arange(len(self._dataset), dtype=np.int32)
        np.random.default_rng((_SHUFFLE, self._seed, epoch)).shuffle(order)
        return order


def each_once(
    dataset: ImageSet,
    transform: ImageTransform,
    prefetcher: Prefetcher,
    *,
    shape: tuple[int, int, int],
    batch_size: int,
    rank: int,
    world_size: int,
) -> Iterator[Batch]:
    """Yield this rank's share of a set, each image once; rows of label ``NOBODY`` do not count.

    Args:
        dataset: the set.
        transform: what is done to each image; it gets no random numbers to speak of.
        prefetcher: whose threads make the batches.
        shape: channels, height and width of what comes out of the transform.
        batch_size: rows of every batch.
        rank: this process among ``world_size``.
        world_size: the number of ranks that share the set.

    Raises:
        DataError: an image cannot be read.
    """
    own = np.arange(rank, len(dataset), world_size, dtype=np.int32)
    draws = transform.draw(np.random.default_rng(0), batch_size)

    def fillings() -> Iterator[Filling]:
        for start in range(0, len(own), batch_size):
            indices = own[start : start + batch_size]
            yield _from(dataset, transform, indices, draws, shape, batch_size)

    return prefetcher.run(fillings())


def _from(
    dataset: ImageSet,
    transform: ImageTransform,
    indices: NDArray[np.int32],
    draws: NDArray[np.float32],
    shape: tuple[int, int, int],
    batch_size: int = 0,
) -> Filling:
    """Say what is in a batch, and how it is filled; of at least ``batch_size`` rows."""
    rows = max(len(indices), batch_size)
    batch = Batch(np.zeros((rows, *shape), np.uint8), np.full(rows, NOBODY, np.int64))

    def fill(part: slice) -> None:
        for row in range(part.start, min(part.stop, len(indices))):
            image, batch.labels[row] = dataset.decoded(int(indices[row]))
            _write(transform.apply(image, draws[row]), batch.images[row])

    return Filling(batch, fill)


def _write(image: Image, planes: NDArray[np.uint8]) -> None:
    channels, height, width = planes.shape
    if image.shape != (height, width, channels):
        raise DataError(
            f"an image of {image.shape} (height, width, channels) is in a set of "
            f"{(height, width, channels)}; bring all to one size"
        )
    planes[:] = image.transpose(2, 0, 1)
