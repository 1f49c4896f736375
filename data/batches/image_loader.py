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

from data.batches.loader import Batch, BrokenImages, Filling, Loader, Prefetcher, empty_batch
from data.batches.order import epoch_keys, permuted
from data.batches.position import EpochPart, Position
from data.decoding import Image
from data.image_interface import ImageSet
from data.images.transforms import Unchanged
from data.records.recordio import BrokenRecordError

# The first number of every seed, so that no two uses share their random numbers.
_SHUFFLE, _CHANGE = range(2)
BROKEN = -2
"""The label of images that cannot be read, when each is to come once."""


class TransformedImages:
    """A set of images and how they become those of a batch."""

    def __init__(
        self,
        dataset: ImageSet,
        transform: Unchanged,
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
        self.broken = BrokenImages(max_broken, len(dataset))

    def load(self, index: int, draws: NDArray[np.float32]) -> tuple[Image, int]:
        """Return an image as it is in a batch, and its class; ``draws`` are its own.

        Raises:
            BrokenRecordError: it cannot be read, or gets another shape.
        """
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
        part, images = self._epoch_part, self._images
        first = part.first + position.samples + part.offset
        keys = epoch_keys(_SHUFFLE, self._seed, position.epoch)
        indices = permuted(first, self._batch_size, keys, len(images.dataset))
        rng = np.random.default_rng((_CHANGE, self._seed, update, *part.stream))
        draws = images.transform.draw(rng, self.global_batch)

        def load(row: int, index: int) -> tuple[Image, int]:
            own = draws[part.offset + row]
            return images.broken.replace(index, lambda i: images.load(i, own), following)

        def following(index: int) -> int:
            return (index + 1) % len(images.dataset)

        return empty_batch(images.shape, len(indices), indices, load)


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

    def load(row: int, index: int) -> tuple[Optional[Image], int]:
        return images.broken.skip(index, lambda i: images.load(i, draws[row]), BROKEN)

    pieces = (own[start : start + batch_size] for start in range(0, len(own), batch_size))
    return prefetcher.run(empty_batch(images.shape, batch_size, one, load) for one in pieces)
