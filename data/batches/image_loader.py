"""Batches of images for a classifier: endless to train on, each image once to validate.

As with faces, batches follow from seed and update alone, and the next readable image takes the
place of a broken one. To validate, the images are divided among the ranks, each to exactly one; the
last batch is filled up with rows of label ``PADDING``, so that all batches have one size on any
number of ranks, and a broken image leaves a row of label ``BROKEN``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.batches.loader import Batch, BrokenImages, Filling, Loader, Prefetcher
from data.batches.order import epoch_keys, permuted
from data.batches.position import EpochPart, Position
from data.decoding import Image
from data.images.image_set import ImageSet
from data.images.transforms import ImageTransform
from data.records.recordio import BrokenRecordError

# The first number of every seed, so that no two uses share their random numbers.
_SHUFFLE, _CHANGE = range(2)
PADDING, BROKEN = -1, -2
"""The labels of rows that are not counted: those that fill up a batch, and those of images that
cannot be read."""


class TransformedImages:
    """A set of images and how they become those of a batch."""

    def __init__(
        self,
        dataset: ImageSet,
        transform: ImageTransform,
        shape: tuple[int, int, int],
        max_broken: int = 0,
    ) -> None:
        """Assemble it.

        Args:
            dataset: the images.
            transform: what is done to each.
            shape: channels, height and width of what the transform returns.
            max_broken: images that are skipped because they cannot be read; one more is an error.
        """
        self.dataset, self.transform, self.shape = dataset, transform, shape
        self._broken = BrokenImages(max_broken, len(dataset))

    def filling(
        self,
        indices: NDArray[np.int64],
        draws: NDArray[np.float32],
        batch_size: int,
        *,
        replaces: bool,
    ) -> Filling:
        """Return a batch of some images, still empty, and what fills it.

        Args:
            indices: of the images, at most ``batch_size``; the other rows are padding.
            draws: of the transform, a row per image.
            batch_size: rows of the batch.
            replaces: whether the next readable image takes the place of a broken one, whose row
                otherwise has label ``BROKEN``.
        """
        batch = Batch(
            np.zeros((batch_size, *self.shape), np.uint8), np.full(batch_size, PADDING, np.int64)
        )

        def fill(rows: slice) -> None:
            for row in range(rows.start, min(rows.stop, len(indices))):
                found = self._load(int(indices[row]), draws[row], replaces)
                if found is None:
                    batch.labels[row] = BROKEN
                else:
                    image, batch.labels[row] = found
                    batch.images[row] = image.transpose(2, 0, 1)

        return Filling(batch, fill)

    def _load(
        self, index: int, draws: NDArray[np.float32], replaces: bool
    ) -> Optional[tuple[Image, int]]:
        """Return an image as it is in a batch, and its class; None for a broken one."""
        while True:
            try:
                return self._transformed(index, draws)
            except BrokenRecordError as error:
                self._broken.add(index, error)
            if not replaces:
                return None
            index = (index + 1) % len(self.dataset)

    def _transformed(self, index: int, draws: NDArray[np.float32]) -> tuple[Image, int]:
        image, label = self.dataset.decoded(index)
        image = self.transform.apply(image, draws)
        channels, height, width = self.shape
        if image.shape != (height, width, channels):
            raise BrokenRecordError(
                f"{self.dataset.where(index)} gives an image of {' x '.join(map(str, image.shape))}"
                f" (height, width, channels), not of {height} x {width} x {channels}; bring all to "
                "one size"
            )
        return image, label


class ImageLoader(Loader):
    """Endless batches of a set of images.

    Attributes:
        num_classes: the classes of the labels.
        image_size: height and width.
    """

    def __init__(
        self,
        images: TransformedImages,
        *,
        batch_size: int,
        epoch_part: EpochPart,
        seed: int,
        threads: int,
    ) -> None:
        """Start the threads; they have nothing to do until ``batches`` is called.

        ``batch_size`` counts the images per rank and update; the seed of the images' order and
        changes is the same on all ranks.

        Raises:
            DataError: there are fewer images than one global batch.
        """
        assert batch_size > 0
        self.num_classes, self.image_size = images.dataset.num_classes, images.shape[1:]
        self._images, self._batch_size, self._seed = images, batch_size, seed
        super().__init__(threads)
        self.read(epoch_part)

    def read(self, epoch_part: EpochPart) -> None:
        """Read another part of each epoch's order, from the next call of ``batches`` on.

        Raises:
            DataError: there are fewer images than one global batch.
        """
        assert epoch_part.first + epoch_part.length <= len(self._images.dataset)
        self._epoch_part = epoch_part
        self._set_length(epoch_part.name, epoch_part.length, epoch_part.stride)

    @override
    def _filling(self, update: int, position: Position) -> Filling:
        part = self._epoch_part
        first = part.first + position.samples + part.offset
        keys = epoch_keys(_SHUFFLE, self._seed, position.epoch)
        indices = permuted(first, self._batch_size, keys, len(self._images.dataset))
        rng = np.random.default_rng((_CHANGE, self._seed, update, *part.stream))
        draws = self._images.transform.draw(rng, self.global_batch)
        own = slice(part.offset, part.offset + self._batch_size)
        return self._images.filling(indices, draws[own], len(indices), replaces=True)


def each_once(
    images: TransformedImages,
    prefetcher: Prefetcher,
    *,
    batch_size: int,
    rank: int,
    world_size: int,
) -> Iterator[Batch]:
    """Yield this rank's share of a set, each image once.

    Rows of label ``PADDING`` and ``BROKEN`` do not count.

    Args:
        images: the set; its transform depends on no random numbers.
        prefetcher: its threads make the batches.
        batch_size: rows of every batch, the last one too.
        rank: this process among ``world_size``.
        world_size: the number of ranks that share the set.

    Raises:
        DataError: too many images cannot be read, or one has a wrong label.
    """
    own = np.arange(rank, len(images.dataset), world_size, dtype=np.int64)
    draws = images.transform.draw(np.random.default_rng(0), batch_size)
    return prefetcher.run(
        images.filling(own[start : start + batch_size], draws, batch_size, replaces=False)
        for start in range(0, len(own), batch_size)
    )
