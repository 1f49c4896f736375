"""Batches of images in files: endless to train on, each image once to validate.

Decoding must neither make the network wait nor affect what it is trained on. Threads decode into
the batches of the next updates, and all that is random depends on seed and update alone: the order
of an epoch is the same on every rank, an update's global batch is a slice of it, and each rank
reads its own rows. So a run sees the same samples with any number of threads, and the same global
batches on any number of ranks.

The next readable image takes the place of a broken one. To validate, the images are divided among
the ranks, each to exactly one; the last batch is filled up with rows of label ``PADDING``, so that
all batches have one size on any number of ranks, and a broken image leaves a row of label
``BROKEN``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.batches.loader import Batch, Filling, Loader, Prefetcher, empty_batch
from data.batches.order import epoch_keys, permuted
from data.batches.position import EpochPart, Position
from data.decoding import Image
from data.image_interface import ImageSet
from data.images.transforms import Unchanged
from data.records.recordio import BrokenRecordError
from runtime.errors import DataError

_log = logging.getLogger("data")

# The first number of every seed, so that no two uses share their random numbers.
_SHUFFLE, _CHANGE = range(2)
BROKEN = -2
"""The label of images that cannot be read, when each is to come once."""


class TransformedImages:
    """A set of images and how they become those of a batch; derived classes choose some of them.

    Attributes:
        num_classes: how many classes the images that are chosen have.
    """

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
        self.num_classes, self._count = dataset.num_classes, len(dataset)
        # Indices of those that this process has found broken; threads share them.
        self._broken: set[int] = set()
        self._max_broken, self._lock = max_broken, threading.Lock()

    def __len__(self) -> int:
        return self._count

    def order(self, keys: NDArray[np.uint64], first: int, count: int) -> NDArray[np.int64]:
        """Return ``count`` images of an epoch's order from place ``first`` on, int64 ``[count]``.

        Images are known by their index in the set; ``keys`` are those of ``order.epoch_keys``.
        """
        assert 0 <= first and first + count <= self._count, (first, count, self._count)
        numbers: NDArray[np.int64] = permuted(first, count, keys, self._count)
        return numbers

    def following(self, index: int) -> int:
        """Return the first image after ``index`` that is chosen; after the last comes the first."""
        return (index + 1) % len(self.dataset)

    def load(self, index: int, draws: NDArray[Any]) -> tuple[Image, int]:
        """Return an image as it is in a batch, and its class; ``draws`` are its own.

        Raises:
            BrokenRecordError: it cannot be read, or gets another shape.
        """
        image, label = self.decoded(index)
        image = self.transform.apply(image, draws)
        channels, height, width = self.shape
        if image.shape != (height, width, channels):
            raise BrokenRecordError(
                f"{self.dataset.where(index)} gives an image of {' x '.join(map(str, image.shape))}"
                f" (height, width, channels), not of {height} x {width} x {channels}; bring all to "
                "one size"
            )
        return image, label

    def skip(self, index: int, error: BrokenRecordError) -> None:
        """Count a broken image; the first time, its name goes to the log.

        Raises:
            DataError: there are more than the limit, or all images are broken.
        """
        with self._lock:
            if index not in self._broken:
                _log.warning("skipped a broken record: %s", error)
            self._broken.add(index)
        count, is_all = len(self._broken), len(self._broken) >= len(self)
        # The search for a readable image has to end, too.
        if is_all or count > self._max_broken:
            limit = f"more than the {self._max_broken} of --max-bad-records"
            which = "which are all of the set" if is_all else limit
            raise DataError(f"{count} broken records, {which}; the last is {error}")

    def decoded(self, index: int) -> tuple[Image, int]:
        """Return an image before it is changed, and its class among those that are used."""
        return self.dataset.decoded(index)


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
        """Read a part of the images that are chosen; the other arguments are those of ``Loader``.

        Raises:
            DataError: there are fewer images than one global batch.
        """
        self._images = images
        self.num_classes, self.image_size = images.num_classes, images.shape[1:]
        super().__init__(epoch_part, batch_size, seed, threads)

    @override
    def _filling(self, update: int, position: Position) -> Filling:
        part, images = self._epoch_part, self._images
        keys = epoch_keys(_SHUFFLE, self._seed, position.epoch)
        first = part.first + position.samples + part.offset
        indices = images.order(keys, first, self._batch_size)
        # Here, not in the threads, of which several would draw the same.
        seed = (_CHANGE, self._seed, update, *part.stream)
        draws = images.transform.draw(seed, self.global_batch)[part.offset :]

        def load(row: int, index: int) -> tuple[Image, int]:
            while True:
                try:
                    return images.load(index, draws[row])
                except BrokenRecordError as error:
                    images.skip(index, error)
                index = images.following(index)

        return empty_batch(images.shape, len(indices), indices, load)


def each_once(
    images: TransformedImages,
    prefetcher: Prefetcher,
    chunks: Iterable[NDArray[np.int64]],
    batch_size: int,
    *,
    fills_up: bool,
) -> Iterator[Batch]:
    """Yield some images of a set, each image once; its transform takes no random numbers.

    Args:
        images: the set.
        prefetcher: its threads make the batches.
        chunks: indices of images; a batch has those of one chunk.
        batch_size: rows of a batch.
        fills_up: True if the last batch of a chunk is filled up, with rows of label ``PADDING``.

    Raises:
        DataError: too many images cannot be read, or one has a wrong label.
    """

    def load(row: int, index: int) -> tuple[Optional[Image], int]:
        try:
            return images.load(index, np.empty(0))
        except BrokenRecordError as error:
            images.skip(index, error)
            return None, BROKEN

    return prefetcher.run(
        empty_batch(images.shape, batch_size if fills_up else len(own), own, load)
        for chunk in chunks
        for first in range(0, len(chunk), batch_size)
        for own in (chunk[first : first + batch_size],)
    )
