"""Ends a rank that makes no progress, so that the job ends instead of holding its machines.

A rank hangs in a disk that does not answer, in a driver, or in a collective whose other ranks are
gone; no exception is raised then. So a thread watches the progress of the training loop. After some
seconds without progress it prints the rank, the update, the part of the update and the stacks of
all threads, and ends the process with ``STALLED_STATUS``; the launcher then ends the other ranks.

The limit is short within an update only. The start, a verification, a checkpoint, and all that
follows the last update may take longer.

A rank that waits for others makes no progress itself, and the others may have a good reason: a
slower worker that is still training, or one that validates or saves. With parameter servers a rank
can see both; they are passed to the watchdog as ``Others``.

The thread counts the seconds in which it runs itself: a process that was suspended (SIGSTOP) has
not stalled. If a hang holds Python's lock, no Python thread runs; then a thread of compiled code
ends the process.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Callable, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.files import open_kept
from runtime.kernels import types, unlocked_kernel
from runtime.stopwatch import COMMUNICATION, Stopwatch

STALLED_STATUS = 75
"""The exit status of a rank that has made no progress (``EX_TEMPFAIL``: trying again may help)."""

PAUSE_FACTOR = 6
"""The limit outside of updates, in units of the limit within one."""

# A rank that waits for others is ended later, so that the one that hangs reports itself first.
_WAITING_RANK_TICKS = 10
# The native timer leaves this thread twice the limit within an update, and these ticks.
_MARGIN_TICKS = 60
# For printing the stacks, which may hang, as in a full pipe; then SIGALRM ends the process.
_REPORT_SECONDS = 20

# Has faulthandler print the stacks of all threads, which does not need Python's lock.
_STACKS_SIGNAL = int(signal.SIGRTMAX) - 3
_STDERR = 2
Numbers = NDArray[np.int64]
# Indices into the numbers that Python and the native thread share.
_COUNTED, _IS_CLOSED = range(2)

# Of the C library.
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))
_alarm = types.ExternalFunction("alarm", types.uint32(types.uint32))
_write = types.ExternalFunction(
    "write", types.intp(types.int32, types.CPointer(types.uint8), types.intp)
)
_raise = types.ExternalFunction("raise", types.int32(types.int32))
_exit = types.ExternalFunction("_exit", types.void(types.int32))


class Others(NamedTuple):
    """Progress and pauses of other ranks that a rank may have to wait for."""

    progress: object = None
    """Changes whenever this rank sees that another one has made progress."""
    pauses: int = 0
    """Verifications, saves and the like of others that the present update may have to wait for."""


class Watchdog:
    """Watches one rank from its start on."""

    def __init__(
        self,
        seconds: float,
        *,
        rank: int,
        stopwatch: Stopwatch,
        log_file: Path,
        others: Callable[[], Others] = Others,
        tick: float = 1.0,
    ) -> None:
        """Start watching, with the limit for what is outside of updates.

        Args:
            seconds: the time without progress within an update after which the process is ended.
            rank: for the message.
            stopwatch: knows the current part of the update.
            log_file: gets the messages, too.
            others: what this rank knows of the others; called from the watching thread.
            tick: seconds between two checks.
        """
        self._seconds, self._stopwatch = seconds, stopwatch
        self._rank = f"rank {rank} on {socket.gethostname()}"
        self._log_file, self._tick = log_file, tick
        self._others, self._seen = others, others().progress
        self._update = 0
        self._is_in_update = False
        self._waited = 0.0
        self._closed = Event()
        message = (
            f"error: {self._rank} has made no progress, and Python does not run any more; ending "
            f"it with status {STALLED_STATUS}"
        )
        native_seconds = 2 * seconds + _MARGIN_TICKS * tick
        self._numbers, self._native_timer = _start_native_timer(native_seconds, message, tick)
        self._thread = Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def beat(self, update: int) -> None:
        """Count as progress that ``update`` updates are finished; another one follows."""
        self._update, self._waited, self._is_in_update = update, 0.0, True

    def leave_updates(self) -> None:
        """Count as progress; the longer limit holds until the next update is finished."""
        self._waited, self._is_in_update = 0.0, False

    @contextmanager
    def pause(self) -> Iterator[None]:
        """The longer limit holds inside; begin and end count as progress."""
        before = self._is_in_update
        self.leave_updates()
        try:
            yield
        finally:
            self._waited, self._is_in_update = 0.0, before

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join()
        self._numbers[_IS_CLOSED] = 1
        self._native_timer.join()

    def end_process(self) -> None:
        """End the process without exit handlers, which could hang as well."""
        os._exit(STALLED_STATUS)

    def _limit(self) -> float:
        if not self._is_in_update:
            return PAUSE_FACTOR * self._seconds
        if self._stopwatch.current != COMMUNICATION:
            return self._seconds
        pauses = PAUSE_FACTOR * self._seconds * self._others().pauses
        return self._seconds + pauses + _WAITING_RANK_TICKS * self._tick

    def _watch(self) -> None:
        while not self._closed.wait(self._tick):
            self._waited += self._tick
            # Changes only while this rank waits for others: it looks at their progress then.
            progress = self._others().progress
            if progress != self._seen:
                self._seen, self._waited = progress, 0.0
            # Expires only if this thread does not run any more.
            self._numbers[_COUNTED] = 0
            if self._waited > self._limit():
                signal.alarm(_REPORT_SECONDS)
                self._report()
                self.end_process()
                return

    def _report(self) -> None:
        if self._is_in_update:
            where = f"in update {self._update + 1}, {self._stopwatch.current}"
        else:
            where = f"outside of updates, after update {self._update}"
        line = (
            f"error: {self._rank} has made no progress for {self._waited:.0f} s, {where}; ending "
            f"it with status {STALLED_STATUS}\n"
        )
        # Not by Python's logging, whose lock the thread that hangs may hold. A screen that is
        # closed and a disk that is full (ValueError, OSError) must not end this thread.
        with suppress(OSError, ValueError):
            sys.stderr.write(line)
            sys.stderr.flush()
            faulthandler.dump_traceback(sys.__stderr__ or _STDERR)
        with suppress(OSError, ValueError):
            with open(self._log_file, "a", encoding="utf-8", opener=open_kept) as file:
                file.write(line)
                file.flush()
                faulthandler.dump_traceback(file)


def _start_native_timer(seconds: float, message: str, tick: float) -> tuple[Numbers, Thread]:
    """Start a compiled thread that ends the process unless it is reset, also in a hang of Python.

    Every ``tick`` it counts up a number, which is set to 0 in time. It ends the process after
    ``seconds`` in which the process runs, with ``message`` and the stacks of all threads. A timer
    of the operating system would also run while the process is suspended, and end it when it goes
    on; here a suspension counts as one tick.
    """
    numbers = np.zeros(2, np.int64)
    faulthandler.register(_STACKS_SIGNAL, sys.__stderr__ or _STDERR, chain=False)
    text = np.frombuffer(message.encode() + b"\n", np.uint8).copy()
    arguments = (round(seconds / tick), np.uint32(tick * 1e6), text)
    # Compiled before the thread starts, so that a compiler error is raised here.
    _count(np.ones_like(numbers), *arguments)
    thread = Thread(target=_count, args=(numbers, *arguments), name="native timer", daemon=True)
    thread.start()
    return numbers, thread


@unlocked_kernel
def _count(numbers: Numbers, limit: int, tick: int, text: NDArray[np.uint8]) -> None:
    """Count ticks until the timer is closed, or the limit is passed."""
    while numbers[_IS_CLOSED] == 0:
        _usleep(tick)
        numbers[_COUNTED] += 1
        if numbers[_COUNTED] > limit and numbers[_IS_CLOSED] == 0:
            _alarm(_REPORT_SECONDS)
            _write(_STDERR, text.ctypes, len(text))
            _raise(_STACKS_SIGNAL)
            _exit(STALLED_STATUS)
