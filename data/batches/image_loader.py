"""Batches of pictures for a classifier: endless to train on, each once to test.

The order of an epoch is the same on every rank. An update's global batch is a slice of it and every
rank takes its own rows, or each has a share of the order for itself: as with faces, batches depend
on seed and update alone. To test, the
pictures are shared out over the ranks, each to exactly one; a last batch that is not full is filled
up with rows that nobody counts, so that batches are of one size on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from data.batches.epoch_part import Portion
from data.batches.loader import Batch, Filling, Loader, Prefetcher
from data.batches.position import Position
from data.images.decoding import Image
from data.images.image_set import PictureSet
from data.images.transforms import Recipe
from runtime.errors import DataError

# The first number of every seed, so that no two uses share their random numbers.
_SHUFFLE, _CHANGE = range(2)
_AHEAD = 4
NOBODY = -1
"""The label of a row that is there to fill a batch up."""


class PictureLoader(Loader):
    """Endless batches of pictures."""

    def __init__(
        self,
        pictures: PictureSet,
        recipe: Recipe,
        *,
        shape: tuple[int, int, int],
        batch_size: int,
        portion: Portion,
        seed: int,
        threads: int,
    ) -> None:
        """Start the threads; they have nothing to do until ``batches`` is called.

        Args:
            pictures: the set.
            recipe: what is done to each picture.
            shape: channels, height and width of what comes out of it.
            batch_size: pictures per rank and update.
            portion: what this process reads of each epoch's order.
            seed: of the order of pictures and their changes; the same on all ranks.
            threads: how many make batches.

        Raises:
            DataError: there are fewer pictures than one global batch.
        """
        assert batch_size > 0 and portion.first + portion.length <= len(pictures)
        self._pictures, self._recipe, self._shape = pictures, recipe, shape
        self._batch_size, self._portion, self._seed = batch_size, portion, seed
        super().__init__(
            portion.name, portion.length, portion.stride, threads=threads, ahead=_AHEAD
        )

    def _filling(self, update: int, position: Position) -> Filling:
        portion = self._portion
        first = portion.first + position.samples + portion.offset
        indices = self._orders.rows(position.epoch, first, self._batch_size)
        rng = np.random.default_rng((_CHANGE, self._seed, update, *portion.stream))
        own = slice(portion.offset, portion.offset + self._batch_size)
        draws = self._recipe.draw(rng, self.global_batch)[own]
        return _from(self._pictures, self._recipe, indices, draws, self._shape)

    def _shuffled(self, epoch: int) -> NDArray[np.int32]:
        order = np.arange(len(self._pictures), dtype=np.int32)
        np.random.default_rng((_SHUFFLE, self._seed, epoch)).shuffle(order)
        return order


def each_once(
    pictures: PictureSet,
    recipe: Recipe,
    prefetcher: Prefetcher,
    *,
    shape: tuple[int, int, int],
    batch_size: int,
    rank: int,
    world_size: int,
) -> Iterator[Batch]:
    """Yield this rank's share of a set, each picture once; rows of label ``NOBODY`` do not count.

    Args:
        pictures: the set.
        recipe: what is done to each picture; it gets no random numbers to speak of.
        prefetcher: whose threads make the batches.
        shape: channels, height and width of what comes out of the recipe.
        batch_size: rows of every batch.
        rank: this process among ``world_size``.
        world_size: the number of ranks that share the set.

    Raises:
        DataError: a picture cannot be read.
    """
    own = np.arange(rank, len(pictures), world_size, dtype=np.int32)
    draws = recipe.draw(np.random.default_rng(0), batch_size)

    def fillings() -> Iterator[Filling]:
        for start in range(0, len(own), batch_size):
            indices = own[start : start + batch_size]
            yield _from(pictures, recipe, indices, draws, shape, batch_size)

    return prefetcher.run(fillings())


def _from(
    pictures: PictureSet,
    recipe: Recipe,
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
            image, batch.labels[row] = pictures.picture(int(indices[row]))
            _write(recipe.apply(image, draws[row]), batch.images[row])

    return Filling(batch, fill)


def _write(image: Image, planes: NDArray[np.uint8]) -> None:
    channels, height, width = planes.shape
    if image.shape != (height, width, channels):
        raise DataError(
            f"a picture of {image.shape} (height, width, channels) is in a set of "
            f"{(height, width, channels)}; bring all to one size"
        )
    planes[:] = image.transpose(2, 0, 1)
