"""Threads that fill the batches of the next updates while the network works on this one.

A loader says what is in each batch and how some of its rows are filled; here batches are filled
before they are needed and returned in their order.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Callable, NamedTuple, Optional, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from data.batches.position import EpochPlan, Position
from runtime.errors import DataError

_Self = TypeVar("_Self", bound="Loader")

# At most. With smaller tasks, threads wait for each other and for Python's lock.
_ROWS_PER_TASK = 128
# Batches that are filled before they are needed.
_AHEAD = 4
# Batches that are begun together. Meanwhile no thread can begin with its next image, and the first
# takes three times as long as the others: the processor's cache holds what the threads work on.
_AT_ONCE = 4


class Batch(NamedTuple):
    """One rank's part of a global batch: uint8 ``[b, channels, height, width]`` and int64 ``[b]``.

    Colors are RGB.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Filling(NamedTuple):
    """A batch to be filled."""

    batch: Batch
    fill: Callable[[slice], None]
    """Fills some rows; threads call it until all rows are filled."""


# A batch and the tasks that fill it.
_Begun = tuple[Batch, list[Future[None]]]


class Prefetcher:
    """The threads. OpenCV decodes without Python's lock, so they decode at the same time.

    A context manager: leaving it ends the threads.
    """

    def __init__(self, threads: int, ahead: int) -> None:
        """Start ``threads`` threads, which fill at least ``ahead`` batches ahead of their use."""
        assert threads > 0 and ahead > 0
        self._threads, self._ahead = threads, ahead
        # OpenCV's own threads would compete with these for the same cores.
        self._pool = ThreadPoolExecutor(threads, "decode", cv2.setNumThreads, (0,))

    def run(self, fillings: Iterable[Filling]) -> Iterator[Batch]:
        """Yield the batches in their order.

        An error in a thread is raised here: with its batch, or one before it of the same task.
        """
        pending: deque[_Begun] = deque()
        rest = iter(fillings)
        try:
            while self._refill(pending, rest):
                yield _finished(*pending.popleft())
        finally:
            for _, tasks in pending:
                for task in tasks:
                    task.cancel()

    def _refill(self, pending: deque[_Begun], rest: Iterator[Filling]) -> int:
        """Begin several batches if no more than ``ahead`` are under way; returns how many are."""
        if len(pending) <= self._ahead:
            pending.extend(self._begin(list(islice(rest, self._ahead + _AT_ONCE - len(pending)))))
        return len(pending)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, fillings: Sequence[Filling]) -> Iterator[_Begun]:
        """Divide the rows of all batches, one behind the other, into tasks for the threads.

        While tasks are made no thread can begin with its next image; few are made soon.
        """
        ends = list(itertools.accumulate(len(filling.batch.labels) for filling in fillings))
        rows = ends[-1] if ends else 0
        size = min(_ROWS_PER_TASK, max(1, math.ceil(rows / self._threads)))

        def fill(first: int) -> None:
            for filling, end in zip(fillings, ends):
                begin = end - len(filling.batch.labels)
                own = slice(max(first, begin) - begin, min(first + size, end) - begin)
                if own.start < own.stop:
                    filling.fill(own)

        tasks = [self._pool.submit(fill, first) for first in range(0, rows, size)]
        for filling, end in zip(fillings, ends):
            begin = end - len(filling.batch.labels)
            yield filling.batch, tasks[begin // size : math.ceil(end / size)]


class Loader:
    """Endless batches of a set, filled by threads; derived classes say with what.

    The order of an epoch follows from the seed and is the same on every rank; the global batch of
    an update is a slice of it, which follows from the update.

    A context manager: leaving it ends the threads.

    Attributes:
        num_images: images per epoch, of all processes that read the same part of it.
        global_batch: images per update, of all these processes.
        updates_per_epoch: full global batches per epoch. The images beyond them are left out, other
            ones each epoch.
    """

    def __init__(self, threads: int) -> None:
        """Start the threads, which fill batches when ``batches`` is called."""
        self._prefetcher = Prefetcher(threads, _AHEAD)

    def _set_length(self, name: str, num_images: int, global_batch: int) -> None:
        """Set the number of images per epoch and update; ``name`` is that of the set.

        Raises:
            DataError: there are fewer images than one global batch.
        """
        self.num_images, self.global_batch = num_images, global_batch
        self.updates_per_epoch = num_images // global_batch
        if not self.updates_per_epoch:
            raise DataError(
                f"{name} has {num_images} images, fewer than one global batch of {global_batch}; "
                "choose a smaller --batch-size or use fewer ranks"
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
        epoch_plan = EpochPlan(self.num_images, self.global_batch)
        if position is not None:
            epoch_plan = EpochPlan(self.num_images, self.global_batch, start_update, position)
        return self._prefetcher.run(
            self._filling(update, epoch_plan.at(update)) for update in itertools.count(start_update)
        )

    def close(self) -> None:
        """End the threads."""
        self._prefetcher.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _filling(self, update: int, position: Position) -> Filling:
        """Return the batch of an update, still empty, and what fills it."""
        raise NotImplementedError


def _finished(batch: Batch, tasks: list[Future[None]]) -> Batch:
    """Wait until a batch is filled; an error in a thread is raised here."""
    for task in tasks:
        task.result()
    return batch
