"""Ends a rank that makes no progress, so that the job ends instead of holding its machines.

A rank hangs in a disk that does not answer, in a driver, or in a collective whose other ranks are
gone; Python sees nothing of that. So a thread looks at the progress of the training loop. When
there is none for a while, it warns; when there is none for too long, it says which rank, which
update and which part of it, prints what every thread was doing, and ends the process with
``STALLED_STATUS``; the launcher then ends all others.

Only within an update is the time short. The start, a verification, a checkpoint, and all that
follows the last update may take longer.

A rank that waits for others shows no progress of its own, and they may have a good reason to keep
it waiting: a slower worker that trains on, or one that validates or saves. With parameter servers
both can be read on their board, so ``Others`` tells of them.

The thread counts the seconds in which it runs itself: a process that was suspended has not stalled.
Behind it stands a timer in compiled code, which also works when a hang holds Python's lock.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Callable, NamedTuple

from training.log.native_timer import NativeTimer
from training.log.stopwatch import COMMUNICATION, Stopwatch

STALLED_STATUS = 75
"""The exit status of a rank that has made no progress (``EX_TEMPFAIL``: trying again may help)."""

PATIENCE = 6
"""How many times the seconds of an update what is outside of updates may take."""

# A rank that waits for others lets the one that hangs speak first.
_COURTESY_TICKS = 10
# What the compiled timer leaves to this thread, beyond twice the time without progress.
_MARGIN_TICKS = 60
_LAST_WORDS_SECONDS = 20.0
_LONGEST_QUIET = 60.0


class Others(NamedTuple):
    """What a rank knows of those that it may have to wait for."""

    progress: object = None
    """Is another one as soon as this rank has seen that any of them has come further."""
    pauses: int = 0
    """How many verifications, saves and the like of others its present update may wait for."""


class Watchdog:
    """Watches one rank, from its start on."""

    def __init__(
        self,
        seconds: float,
        *,
        rank: int,
        stopwatch: Stopwatch,
        log_file: Path,
        others: Callable[[], Others] = Others,
        tick: float = 1.0,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """Begin to watch; the first ``beat`` ends the start-up.

        Args:
            seconds: of no progress within an update that end the process. A tenth of it, at most a
                minute, brings a warning.
            rank: for the message.
            stopwatch: knows the part of the update.
            log_file: gets the messages, too.
            others: what this rank knows of the others; asked from another thread.
            tick: seconds between two looks.
            end: ends the process.
        """
        self._seconds, self._rank, self._stopwatch = seconds, rank, stopwatch
        self._log_file, self._tick, self._end = log_file, tick, end
        self._others, self._seen = others, others().progress
        self._update = 0
        self._patient = True
        self._waited = 0.0
        self._quiet = min(_LONGEST_QUIET, seconds / 10)
        self._closed = threading.Event()
        last_words = (
            f"error: rank {rank} has made no progress, and Python does not run any more; ending it "
            f"with status {STALLED_STATUS}"
        )
        self._timer = NativeTimer(self._last_limit(), last_words, STALLED_STATUS, tick)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def beat(self, update: int) -> None:
        """Count a finished update as progress; another one follows.

        Args:
            update: how many are finished, 0 at the start of training.
        """
        self._update, self._waited, self._patient = update, 0.0, False

    def rest(self) -> None:
        """Count as progress, and be patient until the next update is finished."""
        self._waited, self._patient = 0.0, True

    @contextmanager
    def patience(self) -> Iterator[None]:
        """Allow more time for what happens inside; its begin and its end count as progress."""
        before = self._patient
        self.rest()
        try:
            yield
        finally:
            self._waited, self._patient = 0.0, before

    def close(self) -> None:
        """Watch no longer."""
        self._closed.set()
        self._thread.join()
        self._timer.close()

    def _limit(self) -> float:
        if self._patient:
            return PATIENCE * self._seconds
        if not self._waits_for_others():
            return self._seconds
        pauses = PATIENCE * self._seconds * self._others().pauses
        return self._seconds + pauses + _COURTESY_TICKS * self._tick

    def _last_limit(self) -> float:
        return 2 * self._limit() + _MARGIN_TICKS * self._tick

    def _waits_for_others(self) -> bool:
        return self._stopwatch.current == COMMUNICATION

    def _notice_others(self) -> None:
        """Count progress of others: only a rank that waits for them looks whether there is any."""
        progress = self._others().progress
        if progress != self._seen:
            self._seen, self._waited = progress, 0.0

    def _watch(self) -> None:
        while not self._closed.wait(self._tick):
            self._waited += self._tick
            self._notice_others()
            limit = self._limit()
            # Comes true only if this thread does not get its turn any more.
            self._timer.arm(self._last_limit())
            if self._waited > limit:
                self._bark()
                return
            if self._waited > self._quiet and not self._patient:
                self._warn()

    def _warn(self) -> None:
        # Where updates take that long, a few lines say so and not one for each of them.
        self._quiet *= 2
        what = "waited" if self._waits_for_others() else "made no progress"
        whom = " for other ranks" if self._waits_for_others() else ""
        self._say(
            f"warning: rank {self._rank} has {what} for {self._waited:.0f} s{whom}, {self._where()}"
        )

    def _bark(self) -> None:
        # Whatever hangs may hang these lines, too: a full pipe, a disk that does not answer.
        self._timer.arm(_LAST_WORDS_SECONDS)
        self._say(
            f"error: rank {self._rank} has made no progress for {self._waited:.0f} s, "
            f"{self._where()}; ending it with status {STALLED_STATUS}",
            has_stacks=True,
        )
        self._end(STALLED_STATUS)

    def _where(self) -> str:
        if self._patient:
            return f"outside of updates, after update {self._update}"
        return f"in update {self._update + 1}, {self._stopwatch.current}"

    def _say(self, line: str, has_stacks: bool = False) -> None:
        # Not by Python's logging, whose lock the thread that hangs may hold. A screen that is
        # closed and a disk that is full (ValueError, OSError) must not end this thread.
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
            if has_stacks:
                faulthandler.dump_traceback(sys.__stderr__ or 2)
        with suppress(OSError, ValueError), self._log_file.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
            file.flush()
            if has_stacks:
                faulthandler.dump_traceback(file)
