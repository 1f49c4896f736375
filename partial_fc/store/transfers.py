"""Reads and writes of a store, in the background.

One thread takes them in the order in which they were asked for, so that a step does not wait until
the rows of the last one, and their images in the undo log, are on the disk, and a read sees every
write that was asked for before it. Each is divided among several threads, because a disk is fast
only when it has many requests at a time. After an error nothing more is read or written: the rows
that the undo log has are then all that have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Optional

import numpy as np

# Requests to the disk at a time. They wait in the system, so they are more than the processors.
_THREADS = 16
# With fewer rows, handing them out takes longer than reading them.
_ROWS_PER_TASK = 256


class Transfers:
    """What a store reads and writes while the head computes."""

    def __init__(self) -> None:
        """Start the threads."""
        self._ordered = ThreadPoolExecutor(1, "centers")
        self._flushing = ThreadPoolExecutor(1, "centers-flush")
        self._requests = ThreadPoolExecutor(_THREADS, "center-rows")
        self._last: Optional[Future[Any]] = None
        self._last_flush: Optional[Future[Any]] = None
        self._error: Optional[BaseException] = None

    def submit(self, action: Callable[[], Any]) -> Future[Any]:
        """Do something after everything that was asked for before."""
        self._last = self._ordered.submit(self._run, action)
        return self._last

    def flush(self, action: Callable[[], Any]) -> None:
        """Do something beside reads and writes, once the flush before has ended."""
        if self._last_flush is not None:
            self._last_flush.result()
        self._last_flush = self._flushing.submit(self._run, action)

    def spread(self, action: Callable[[slice], Any], num_rows: int) -> list[Any]:
        """Do something to all rows, some at a time; for what ``submit`` does."""
        tasks = min(-(-num_rows // _ROWS_PER_TASK), _THREADS)
        bounds = np.linspace(0, num_rows, tasks + 1, dtype=np.int64)
        parts = [slice(*pair) for pair in zip(bounds[:-1], bounds[1:])]
        return [*self._requests.map(action, parts)]

    def wait(self, future: Optional[Future[Any]] = None) -> None:
        """Wait for something, or for everything that was asked for; raise what has gone wrong."""
        last = future or self._last
        if last is not None:
            last.result()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the threads, after everything that they were given."""
        for threads in (self._ordered, self._flushing, self._requests):
            threads.shutdown()

    def _run(self, action: Callable[[], Any]) -> None:
        try:
            if self._error is None:
                action()
        except BaseException as error:
            # Whoever waits raises it.
            self._error = error
