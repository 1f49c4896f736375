"""Ends a rank that makes no progress, so that the job ends instead of holding its machines.

A rank hangs in a disk that does not answer, in a driver, or in a collective whose other ranks are
gone; Python sees nothing of that. So a thread looks at the progress of the training loop. When
there is none for too long, it says which rank, which update and which part of it, prints what every
thread was doing, and ends the process with ``STALLED_STATUS``; the launcher then ends all others.

The thread counts the seconds in which it runs itself: a machine that was suspended has not stalled.
Behind it stands a timer in C, which also works when a hang holds Python's lock.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Callable

from training.stopwatch import COMMUNICATION, Stopwatch

STALLED_STATUS = 75
"""The exit status of a rank that has made no progress (``EX_TEMPFAIL``: trying again may help)."""

PATIENCE = 6
"""How many times the seconds of an update the start, a verification or a checkpoint may take."""

# A rank that waits for others lets the one that hangs speak first.
_COURTESY_SECONDS = 10.0
_LAST_WORDS_SECONDS = 20.0


class Watchdog:
    """Watches one rank, from its start on."""

    def __init__(
        self,
        seconds: float,
        *,
        rank: int,
        stopwatch: Stopwatch,
        log_file: Path,
        tick: float = 1.0,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """Begin to watch; the first ``beat`` ends the start-up.

        Args:
            seconds: of no progress within an update that end the process.
            rank: for the message.
            stopwatch: knows the part of the update.
            log_file: gets the message, too.
            tick: seconds between two looks.
            end: ends the process.
        """
        self._seconds, self._rank, self._stopwatch = seconds, rank, stopwatch
        self._log_file, self._tick, self._end = log_file, tick, end
        self._update = 0
        self._patient = True
        self._waited = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def beat(self, update: int) -> None:
        """Count a finished update as progress.

        Args:
            update: how many are finished, 0 at the start of training.
        """
        self._update, self._waited, self._patient = update, 0.0, False

    @contextmanager
    def patience(self) -> Iterator[None]:
        """Allow more time for what happens inside; its end counts as progress."""
        self._patient = True
        try:
            yield
        finally:
            self.beat(self._update)

    def close(self) -> None:
        """Watch no longer."""
        self._closed.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _limit(self) -> float:
        if self._patient:
            return PATIENCE * self._seconds
        waits = self._stopwatch.current == COMMUNICATION
        return self._seconds + waits * _COURTESY_SECONDS

    def _watch(self) -> None:
        while not self._closed.wait(self._tick):
            self._waited += self._tick
            limit = self._limit()
            if self._waited > limit:
                self._bark()
                return
            # Comes true only if this thread does not get its turn any more.
            faulthandler.dump_traceback_later(2 * limit + 60, exit=True)

    def _bark(self) -> None:
        # Whatever hangs may hang these lines, too: a full pipe, a disk that does not answer.
        faulthandler.dump_traceback_later(_LAST_WORDS_SECONDS, exit=True)
        where = "the start or between updates" if self._patient else self._stopwatch.current
        line = (
            f"error: rank {self._rank} has made no progress for {self._waited:.0f} s, in update "
            f"{self._update + 1}, {where}; ending it with status {STALLED_STATUS}\n"
        )
        sys.stderr.write(line)
        sys.stderr.flush()
        faulthandler.dump_traceback(sys.__stderr__ or 2)
        # Not by Python's logging, whose lock the thread that hangs may hold.
        with self._log_file.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            faulthandler.dump_traceback(file)
        self._end(STALLED_STATUS)
