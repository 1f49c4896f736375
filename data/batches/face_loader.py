"""Batches for training: from a record set, or made in memory.

Decoding must neither make the network wait nor decide what it sees. Threads decode straight into
the batches of the next updates (OpenCV works without Python's lock), while everything random
depends on the seed and the update alone: the order of an epoch is the same on every rank, an
update's global batch is a slice of it, and every rank takes its own rows. So a run sees the same
samples on any number of threads, and the same global batches on any number of ranks.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from data.batches.loader import Batch, Filling, Loader
from data.batches.planes import IMAGES_AT_ONCE, write_planes
from data.batches.position import Position
from data.images.augmentation import Augmentation
from data.images.decoding import Image, decode_jpeg, decode_rgb
from data.records.recordio import BrokenRecordError, Payload
from data.records.selection import LabeledImages, Selection
from runtime.errors import DataError

_log = logging.getLogger("data")

# The first number of every seed, so that no two uses share their random numbers.
_SHUFFLE, _CHANGE, _LABELS = range(3)
_MIRRORED_SHARE = 0.5
_NO_AUGMENTATION = Augmentation()


class _Changes(NamedTuple):
    """What chance does to the images of one rank's batch, a row per image."""

    mirrored: NDArray[np.bool_]
    augmentation: NDArray[np.float32] | None
    """Nothing if images are not augmented."""


class FaceRecords(LabeledImages, Protocol):
    """What the loader asks of a record set, or of several joined; from any number of threads."""

    image_size: tuple[int, int]

    def image(self, index: int) -> tuple[Payload, int]:
        """Return an image, still encoded, and its class."""

    def images(
        self, indices: NDArray[np.int32]
    ) -> tuple[list[NDArray[np.uint8] | None], NDArray[np.int32]]:
        """Return many JPEGs at once; None for one that ``image`` has to be asked for."""

    def where(self, index: int) -> str:
        """Name the file and the record of an image, for messages."""


class FaceLoader(Loader):
    """Endless batches from a record set, decoded by threads ahead of their use.

    Attributes:
        num_classes: the classes of the labels, without those that ``min_images`` left out.
        image_size: height and width.
    """

    def __init__(
        self,
        dataset: FaceRecords,
        *,
        batch_size: int,
        rank: int,
        world_size: int,
        seed: int,
        threads: int,
        prefetch: int = 4,
        mirror: bool = True,
        augmentation: Augmentation = _NO_AUGMENTATION,
        min_images: int = 0,
        max_bad_records: int = 100,
    ) -> None:
        """Start the threads; they have nothing to do until ``batches`` is called.

        Args:
            dataset: the images.
            batch_size: images per rank and update.
            rank: this process among ``world_size``.
            world_size: the number of ranks that share each global batch.
            seed: of the order of images, mirroring and augmentation; the same on all ranks.
            threads: how many decode.
            prefetch: updates that are decoded ahead.
            mirror: whether half of the images are mirrored.
            augmentation: further changes to the images.
            min_images: identities with fewer images are left out, the others numbered anew.
            max_bad_records: more broken records than these raise a ``DataError``.

        Raises:
            DataError: there are fewer images than one global batch.
        """
        assert 0 <= rank < world_size and batch_size > 0
        self._dataset = dataset
        self._batch_size, self._rank, self._seed = batch_size, rank, seed
        self._mirror, self._augmentation = mirror, augmentation
        self._selection = Selection(dataset, min_images)
        self.num_classes = self._selection.num_classes
        self.image_size = dataset.image_size
        self._max_bad_records = max_bad_records
        self._bad: set[int] = set()
        self._bad_lock = threading.Lock()
        super().__init__(threads=threads, ahead=prefetch)
        self._set_length(str(dataset.path), len(self._selection), batch_size * world_size)

    @property
    def bad_records(self) -> int:
        """How many different records this rank has found broken."""
        return len(self._bad)

    def _filling(self, update: int, position: Position) -> Filling:
        first = position.samples + self._rank * self._batch_size
        indices = self._orders.rows(position.epoch, first, self._batch_size)
        shape = (self._batch_size, 3, *self.image_size)
        batch = Batch(np.empty(shape, np.uint8), np.empty(self._batch_size, np.int64))
        return Filling(batch, lambda rows: self._fill(batch, rows, indices, update))

    def _shuffled(self, epoch: int) -> NDArray[np.int32]:
        return self._selection.shuffled(np.random.default_rng((_SHUFFLE, self._seed, epoch)))

    def _draw_changes(self, update: int) -> _Changes:
        """Draw for the whole global batch and keep this rank's rows."""
        rng = np.random.default_rng((_CHANGE, self._seed, update))
        rows = slice(self._rank * self._batch_size, (self._rank + 1) * self._batch_size)
        mirrored = rng.random(self.global_batch) < (_MIRRORED_SHARE if self._mirror else 0.0)
        augmentation = None
        if self._augmentation != _NO_AUGMENTATION:
            augmentation = self._augmentation.draw(rng, self.global_batch)[rows]
        return _Changes(mirrored[rows], augmentation)

    def _fill(self, batch: Batch, rows: slice, indices: NDArray[np.int32], update: int) -> None:
        """Decode some rows of an update's batch; runs in a thread."""
        changes = self._draw_changes(update)
        own, planes, mirrored = indices[rows], batch.images[rows], changes.mirrored[rows]
        payloads, labels = self._dataset.images(own)
        # What stands in this loop keeps Python's lock, and with it the other threads from decoding.
        for first in range(0, len(own), IMAGES_AT_ONCE):
            few = slice(first, first + IMAGES_AT_ONCE)
            images: list[Image] = []
            for row, payload in enumerate(payloads[few], first):
                image = None if payload is None else decode_jpeg(payload)
                if image is None or image.shape[:2] != self.image_size:
                    # Something is unusual or wrong, which this finds as well.
                    image, labels[row] = self._load(int(own[row]))
                images.append(image)
            if changes.augmentation is not None:
                draws = changes.augmentation[rows][few]
                images = [self._augmentation.apply(*both) for both in zip(images, draws)]
            images += images[-1:] * (IMAGES_AT_ONCE - len(images))
            write_planes(tuple(images), planes[few], mirrored[few])
        batch.labels[rows] = self._selection.classes[labels]

    def _load(self, index: int) -> tuple[Image, int]:
        """Return an image and its label; the next readable image in place of a broken one."""
        while True:
            try:
                return self._decode(index)
            except BrokenRecordError as error:
                self._count_bad(index, error)
            index = self._selection.following(index)

    def _decode(self, index: int) -> tuple[Image, int]:
        payload, label = self._dataset.image(index)
        try:
            image = decode_rgb(payload)
        except BrokenRecordError as error:
            raise BrokenRecordError(f"{self._dataset.where(index)}: {error}") from None
        if image.shape[:2] != self.image_size:
            (height, width), (right_height, right_width) = image.shape[:2], self.image_size
            raise BrokenRecordError(
                f"{self._dataset.where(index)}: the image has {height} x {width} "
                f"pixels, the set has {right_height} x {right_width}"
            )
        return image, label

    def _count_bad(self, index: int, error: BrokenRecordError) -> None:
        with self._bad_lock:
            if index not in self._bad:
                _log.warning("skipped a broken record: %s", error)
            self._bad.add(index)
        # Where all images are broken, the search for another one must end as well.
        if len(self._bad) > min(self._max_bad_records, len(self._selection) - 1):
            raise DataError(
                f"{len(self._bad)} broken records, more than the {self._max_bad_records} of "
                f"--max-bad-records; the last is {error}"
            )


class MemoryBatches:
    """Batches without reading or decoding: what a run does when input costs nothing.

    The images are made once; the labels are uniform over all classes, so that every rank of a
    sharded head has positives as in a real run.

    A context manager as the loader is; there is nothing to end.

    Attributes:
        num_classes: the classes of the labels.
        image_size: height and width.
        num_images: as if every identity had one image; at least a global batch.
        global_batch: images per update over all ranks.
        updates_per_epoch: global batches of these.
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
        """Make the images.

        Args:
            num_classes: labels are 0 … num_classes - 1.
            image_size: height and width.
            batch_size: images per rank and update.
            rank: this process among ``world_size``.
            world_size: the number of ranks that share each global batch.
            seed: of images and labels; the same on all ranks.
        """
        assert 0 <= rank < world_size and batch_size > 0 and num_classes > 0
        self.num_classes = num_classes
        self.image_size = image_size
        self.global_batch = batch_size * world_size
        self.num_images = max(num_classes, self.global_batch)
        self.updates_per_epoch = self.num_images // self.global_batch
        self._seed = seed
        self._rows = slice(rank * batch_size, (rank + 1) * batch_size)
        rng = np.random.default_rng((_CHANGE, seed, rank))
        self._images = rng.integers(0, 256, (batch_size, 3, *image_size), np.uint8)

    def batches(self, start_update: int = 0, position: Position | None = None) -> Iterator[Batch]:
        """Yield this rank's batches of the updates from ``start_update`` on, without end.

        They follow from the update alone; the position in the data makes no difference.
        """
        for update in itertools.count(start_update):
            rng = np.random.default_rng((_LABELS, self._seed, update))
            labels = rng.integers(0, self.num_classes, self.global_batch)
            yield Batch(self._images, labels[self._rows])

    def __enter__(self) -> MemoryBatches:
        """Return the batches."""
        return self

    def __exit__(self, *_: object) -> None:
        """End nothing."""
