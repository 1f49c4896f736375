"""Reads and writes of a store, in the background and in order.

One thread takes them in the order in which they were asked for, so that a read sees every write
before it, and divides each among several threads, because a disk is fast only when it has many
requests at a time. After an error nothing more is read or written: the rows that the undo log has
are then all that have changed.
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
        self._queue = ThreadPoolExecutor(1, "centers")
        self._pool = ThreadPoolExecutor(_THREADS, "center-rows")
        self._last: Optional[Future[Any]] = None
        self._error: Optional[BaseException] = None

    def submit(self, action: Callable[[], Any]) -> Future[Any]:
        """Do something after everything that was submitted before."""
        self._last = self._queue.submit(self._run, action)
        return self._last

    def spread(self, action: Callable[[slice], Any], num_rows: int) -> list[Any]:
        """Do something to all rows, some at a time; for actions that were submitted."""
        tasks = min(-(-num_rows // _ROWS_PER_TASK), _THREADS)
        bounds = np.linspace(0, num_rows, tasks + 1, dtype=np.int64)
        futures = [self._pool.submit(action, slice(*pair)) for pair in zip(bounds[:-1], bounds[1:])]
        return [future.result() for future in futures]

    def wait(self, future: Optional[Future[Any]] = None) -> Any:
        """Wait for one action, or for all.

        Raises:
            OSError: an action has failed; this one or any before it.
            DataError: the same.
        """
        last = future or self._last
        result = last.result() if last else None
        self.check()
        return result

    def check(self) -> None:
        """Raise the error that an action has met, if any."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the threads, after everything that was submitted."""
        self._queue.shutdown()
        self._pool.shutdown()

    def _run(self, action: Callable[[], Any]) -> Any:
        if self._error is not None:
            return None
        try:
            return action()
        except BaseException as error:
            # Whoever waits raises it.
            self._error = error
            return None
