"""Threads that fill the batches of the next updates while the network works on this one.

A loader says what is in each batch and how some of its rows are filled; here batches are filled
before they are needed and returned in their order. Images that cannot be read are skipped, each
named once, and limited in number.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, NamedTuple, Optional, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from data.batches.position import EpochPlan, Position
from data.records.recordio import BrokenRecordError
from runtime.errors import DataError

_log = logging.getLogger("data")
_Self = TypeVar("_Self", bound="Prefetcher")

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


class Filling(NamedTuple):
    """A batch to be filled."""

    batch: Batch
    fill: Callable[[slice], None]
    """Fills some rows; threads call it until all rows are filled."""


class Prefetcher:
    """The threads. OpenCV decodes without Python's lock, so they decode at the same time.

    A context manager: leaving it ends the threads.
    """

    def __init__(self, threads: int, ahead: int = _AHEAD) -> None:
        """Start ``threads`` threads, which fill ``ahead`` batches ahead of their use."""
        assert threads > 0 and ahead > 0
        self._threads, self._ahead = threads, ahead
        # OpenCV's own threads would compete with these for the same cores.
        self._pool = ThreadPoolExecutor(threads, "decode", cv2.setNumThreads, (0,))

    def run(self, fillings: Iterable[Filling]) -> Iterator[Batch]:
        """Yield the batches in their order; an error in a thread is raised here."""
        pending: deque[tuple[Batch, list[Future[None]]]] = deque()
        try:
            for filling in fillings:
                pending.append((filling.batch, self._start(filling)))
                if len(pending) > self._ahead:
                    yield self._finished(*pending.popleft())
            while pending:
                yield self._finished(*pending.popleft())
        finally:
            for _, tasks in pending:
                for task in tasks:
                    task.cancel()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, filling: Filling) -> list[Future[None]]:
        """Divide the rows of a batch into tasks for the threads."""
        rows = len(filling.batch.labels)
        size = min(_ROWS_PER_TASK, math.ceil(rows / self._threads))
        return [
            self._pool.submit(filling.fill, slice(first, min(first + size, rows)))
            for first in range(0, rows, size)
        ]

    @staticmethod
    def _finished(batch: Batch, tasks: list[Future[None]]) -> Batch:
        for task in tasks:
            task.result()
        return batch


class BrokenImages:
    """The images of a set that this process has found broken; threads share it.

    Attributes:
        found: their indices.
    """

    def __init__(self, limit: int, images: int) -> None:
        """Start with none.

        Args:
            limit: the number that is skipped; one more is an error.
            images: the number of images in the set, at least one of which has to be readable.
        """
        self.found: set[int] = set()
        self._limit, self._images = limit, images
        self._lock = threading.Lock()

    def add(self, index: int, error: BrokenRecordError) -> None:
        """Count a broken image; the first time, its name goes to the log.

        Raises:
            DataError: there are more than the limit, or all of the set's images are broken.
        """
        with self._lock:
            if index not in self.found:
                _log.warning("skipped a broken record: %s", error)
            self.found.add(index)
        count, is_all = len(self.found), len(self.found) >= self._images
        # The search for a readable image has to end, too.
        if is_all or count > self._limit:
            limit = f"more than the {self._limit} of --max-bad-records"
            which = "which are all of the set" if is_all else limit
            raise DataError(f"{count} broken records, {which}; the last is {error}")


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
        return self.run(
            self._filling(update, epoch_plan.at(update)) for update in itertools.count(start_update)
        )

    def _filling(self, update: int, position: Position) -> Filling:
        """Return the batch of an update, still empty, and what fills it."""
        raise NotImplementedError
