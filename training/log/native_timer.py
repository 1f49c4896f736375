"""Ends a process in which Python does not run any more, counted in the time that the process runs.

A hang can hold Python's lock: no thread of Python gets its turn then, so the one that ends must be
compiled code. And a timer of the system goes on while a process is suspended (SIGSTOP), and would
end it at the moment it goes on. So a compiled thread sleeps and counts, one tick after the other:
however long the process was stopped, it counts as a single tick.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time

import numpy as np
from numba import types
from numpy.typing import NDArray

from runtime.compiled import unlocked_kernel

# What the thread does at last may hang itself, in a full pipe; then the system ends the process.
_LAST_WORDS_SECONDS = 20
# Has the stacks of all threads printed, which faulthandler does without Python's lock.
_STACKS_SIGNAL = int(signal.SIGRTMAX) - 3
_STDERR = 2
# The places in the numbers that Python and the thread share.
_COUNTED, _LIMIT, _IS_RUNNING, _IS_CLOSED = range(4)

# Of the C library.
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))
_alarm = types.ExternalFunction("alarm", types.uint32(types.uint32))
_write = types.ExternalFunction(
    "write", types.intp(types.int32, types.CPointer(types.uint8), types.intp)
)
_raise = types.ExternalFunction("raise", types.int32(types.int32))
_exit = types.ExternalFunction("_exit", types.void(types.int32))


class NativeTimer:
    """Ends the process unless it is armed again in time."""

    def __init__(self, seconds: float, message: str, status: int, tick: float = 1.0) -> None:
        """Start the thread, armed; on return it needs Python no more.

        Args:
            seconds: of the process, after which it is ended.
            message: the line that is printed before the stacks of all threads.
            status: of the process when it is ended.
            tick: seconds between two counts.
        """
        self._tick = tick
        self._numbers = np.zeros(4, np.int64)
        self.arm(seconds)
        faulthandler.register(_STACKS_SIGNAL, sys.__stderr__ or _STDERR, chain=False)
        text = np.frombuffer(message.encode() + b"\n", np.uint8).copy()
        arguments = (self._numbers, np.uint32(tick * 1e6), text, np.int32(status))
        # Compiled before the thread starts, so that a mistake shows here.
        _count(np.ones_like(self._numbers), *arguments[1:])
        self._thread = threading.Thread(
            target=_count, args=arguments, name="native timer", daemon=True
        )
        self._thread.start()
        while not self._numbers[_IS_RUNNING]:
            time.sleep(0.001)

    def arm(self, seconds: float) -> None:
        """End the process after so many seconds in which it runs, counted from now."""
        self._numbers[_COUNTED] = 0
        self._numbers[_LIMIT] = max(1, round(seconds / self._tick))

    def close(self) -> None:
        """End the thread, not the process."""
        self._numbers[_IS_CLOSED] = 1
        self._thread.join()


@unlocked_kernel
def _count(numbers: NDArray[np.int64], tick: int, text: NDArray[np.uint8], status: int) -> None:
    """Count ticks until the timer is closed, or the limit is passed."""
    numbers[_IS_RUNNING] = 1
    while numbers[_IS_CLOSED] == 0:
        _usleep(tick)
        numbers[_COUNTED] += 1
        if numbers[_COUNTED] > numbers[_LIMIT] and numbers[_IS_CLOSED] == 0:
            _alarm(_LAST_WORDS_SECONDS)
            _write(_STDERR, text.ctypes, len(text))
            _raise(_STACKS_SIGNAL)
            _exit(status)
