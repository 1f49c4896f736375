"""Reads and writes of a store, in the background.

One thread takes the writes in the order in which they were asked for, and one the reads, so that a
step does not wait until the rows of the last one, and their images in the undo log, are on the
disk. A read says which write it has to see. Each is divided among several threads, because a disk
is fast only when it has many requests at a time. After an error nothing more is read or written:
the rows that the undo log has are then all that have changed.
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
        self._writing = ThreadPoolExecutor(1, "centers-write")
        self._reading = ThreadPoolExecutor(1, "centers-read")
        self._flushing = ThreadPoolExecutor(1, "centers-flush")
        # A read is not to stand behind the rows of a write.
        self._writers = ThreadPoolExecutor(_THREADS, "center-rows-write")
        self._readers = ThreadPoolExecutor(_THREADS, "center-rows-read")
        self._last_write: Optional[Future[Any]] = None
        self._last_flush: Optional[Future[Any]] = None
        self._error: Optional[BaseException] = None

    def write(self, action: Callable[[], Any]) -> Future[Any]:
        """Do something after everything that was to be written before."""
        self._last_write = self._writing.submit(self._run, action)
        return self._last_write

    def read(self, action: Callable[[], Any], after: Optional[Future[Any]]) -> Future[Any]:
        """Do something after the reads before, and after one of the writes."""

        def read() -> None:
            if after is not None:
                after.result()
            self._run(action)

        return self._reading.submit(read)

    def flush(self, action: Callable[[], Any]) -> None:
        """Do something beside reads and writes, once the flush before has ended."""
        if self._last_flush is not None:
            self._last_flush.result()
        self._last_flush = self._flushing.submit(self._run, action)

    def spread(
        self, action: Callable[[slice], Any], num_rows: int, *, writes: bool = False
    ) -> list[Any]:
        """Do something to all rows, some at a time; for what ``read`` or ``write`` does."""
        pool = self._writers if writes else self._readers
        tasks = min(-(-num_rows // _ROWS_PER_TASK), _THREADS)
        bounds = np.linspace(0, num_rows, tasks + 1, dtype=np.int64)
        futures = [pool.submit(action, slice(*pair)) for pair in zip(bounds[:-1], bounds[1:])]
        return [future.result() for future in futures]

    def wait(self, future: Optional[Future[Any]] = None) -> None:
        """Wait for a read, or for everything that was to be written; ``check`` then."""
        last = future or self._last_write
        if last is not None:
            last.result()
        self.check()

    def check(self) -> None:
        """Raise the error that an action has met, if any."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the threads, after everything that they were given."""
        own = self._reading, self._writing, self._flushing, self._readers, self._writers
        for threads in own:
            threads.shutdown()

    def _run(self, action: Callable[[], Any]) -> None:
        try:
            if self._error is None:
                action()
        except BaseException as error:
            # Whoever waits raises it.
            self._error = error
