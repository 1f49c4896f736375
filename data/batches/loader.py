"""Threads that fill the batches of the next updates while the network works on this one.

A loader says what is in each batch and how some of its rows are filled; here batches are filled
before they are needed and returned in their order.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, NamedTuple, Optional

import cv2
import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from data.batches.position import EpochPart, EpochPlan, Position
from data.decoding import Image
from runtime.errors import DataError

PADDING = -1
"""The label of rows that fill up a batch."""

# Rows of a task at most.
_ROWS_PER_TASK = 128
# Batches that are filled before they are needed.
_AHEAD = 4


class Batch(NamedTuple):
    """One rank's part of a global batch: uint8 ``[b, channels, height, width]`` and int64 ``[b]``.

    Colors are RGB.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


Filling = tuple[Batch, Callable[[slice], None]]
"""A batch, and what fills some rows of it; threads call it until all rows are filled."""


def empty_batch(
    shape: tuple[int, int, int],
    rows: int,
    indices: NDArray[np.int64],
    load: Callable[[int, int], tuple[Optional[Image], int]],
) -> Filling:
    """Return a batch of some images, still empty, and what fills it.

    Args:
        shape: channels, height and width.
        rows: of the batch; those after the last of the images are black and of label ``PADDING``.
        indices: of the images.
        load: returns an image, uint8 ``[height, width, channels]``, and its label, by the row and
            the index; without an image the row stays black.
    """
    batch = Batch(np.empty((rows, *shape), np.uint8), np.full(rows, PADDING, np.int64))
    batch.images[len(indices) :] = 0

    def fill(part: slice) -> None:
        for row in range(part.start, min(part.stop, len(indices))):
            image, batch.labels[row] = load(row, int(indices[row]))
            if image is None:
                batch.images[row] = 0
            else:
                assert image.shape == (*shape[1:], shape[0])
                # From [height, width, channels] to planes, without Python's lock.
                cv2.split(image, list(batch.images[row]))

    return batch, fill


class Prefetcher:
    """The threads. OpenCV decodes without Python's lock, so they decode at the same time.

    A context manager: leaving it ends the threads.
    """

    def __init__(self, threads: int) -> None:
        """Start ``threads`` threads."""
        assert threads > 0
        self._threads = threads
        # OpenCV's own threads would compete with these for the same cores.
        self._pool = ThreadPoolExecutor(threads, "decode", cv2.setNumThreads, (0,))

    def run(self, fillings: Iterable[Filling]) -> Iterator[Batch]:
        """Yield the batches in their order; an error in a thread is raised here."""
        pending: deque[tuple[Batch, list[Future[None]]]] = deque()
        try:
            for batch, fill in fillings:
                rows = len(batch.labels)
                # The threads share two batches: fewer tasks take the lock less often.
                size = min(_ROWS_PER_TASK, math.ceil(2 * rows / self._threads))
                parts = (slice(first, min(first + size, rows)) for first in range(0, rows, size))
                pending.append((batch, [self._pool.submit(fill, part) for part in parts]))
                if len(pending) > _AHEAD:
                    yield _finished(*pending.popleft())
            while pending:
                yield _finished(*pending.popleft())
        finally:
            for _, tasks in pending:
                for task in tasks:
                    task.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


def _finished(batch: Batch, tasks: list[Future[None]]) -> Batch:
    for task in tasks:
        task.result()
    return batch


class Loader(Prefetcher):
    """Endless batches of a set; derived classes say what is in them.

    The order of an epoch follows from the seed and is the same on every rank; the global batch of
    an update is a slice of it, which follows from the update.

    Attributes:
        num_images: images per epoch, of all processes that read the same part of it.
        global_batch: images per update, of all these processes.
        updates_per_epoch: full global batches per epoch. The images beyond them are left out, other
            ones each epoch.
    """

    def __init__(self, epoch_part: EpochPart, batch_size: int, seed: int, threads: int) -> None:
        """Start the threads; they have nothing to do until ``batches`` is called.

        ``batch_size`` counts the images per rank and update; the seed is the same on all ranks.

        Raises:
            DataError: there are fewer images than one global batch.
        """
        assert batch_size > 0
        self._batch_size, self._seed = batch_size, seed
        super().__init__(threads)
        self.read(epoch_part)

    def read(self, epoch_part: EpochPart) -> None:
        """Read another part of each epoch's order, from the next call of ``batches`` on.

        Raises:
            DataError: there are fewer images than one global batch.
        """
        self._epoch_part = epoch_part
        self.num_images, self.global_batch = epoch_part.length, epoch_part.stride
        self.updates_per_epoch = epoch_part.updates_per_epoch
        if not self.updates_per_epoch:
            raise DataError(
                f"{epoch_part.name} has {self.num_images} images, fewer than one global batch of "
                f"{self.global_batch}; choose a smaller --batch-size or use fewer ranks"
            )

    def batches(
        self, start_update: int = 0, position: Optional[Position] = None
    ) -> Iterator[Batch]:
        """Yield this rank's batches of the updates from ``start_update`` on, without end.

        Args:
            start_update: the first update.
            position: its position in the data; by default that of a run that has had this global
                batch from update 0 on.

        Raises:
            DataError: an image cannot be read, or its label is wrong.
        """
        start = () if position is None else (start_update, position)
        epoch_plan = EpochPlan(self.num_images, self.global_batch, *start)
        return self.run(
            self._filling(update, epoch_plan.at(update)) for update in itertools.count(start_update)
        )

    def _filling(self, update: int, position: Position) -> Filling:
        """Return the batch of an update, still empty, and what fills it."""
        raise NotImplementedError
