"""Programs that clean up when a signal stops them.

Python cleans up behind an exception, not when a signal ends the process. A tool that may stop
anywhere (``run_stoppable``) turns the signal into an exception. A training run must not stop
anywhere, because its ranks have to agree on their last update: it polls a ``StopRequest``.

The exit status is the shell's for the signal: 130 for Ctrl-C, 143 for SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, Optional

from runtime.errors import run_program

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_REQUEST_SECONDS = 1.0
"""A signal so soon after the first one is the same request: ``timeout`` and others send theirs to a
program and then to its process group, in which the program gets it again."""
# A shell reports this plus the signal for a program that a signal has ended.
_SIGNAL_STATUS = 128
# mpirun ends all ranks when it gets SIGINT or SIGTERM, but forwards these two to the ranks; so
# run.sh sends them instead.
_FORWARDED: dict[int, int] = {signal.SIGUSR1: signal.SIGINT, signal.SIGUSR2: signal.SIGTERM}


class Stopped(BaseException):
    """A signal stops the program. Not an ``Exception``, so that no handler of failures gets it."""


class StopRequest:
    """The request of a signal to end this process.

    A later SIGINT or SIGTERM ends it at once. What mpirun forwards is one request however often it
    comes, since run.sh repeats it.
    """

    def __init__(self) -> None:
        self.status = 0
        """The exit status that belongs to the request, 0 without one."""
        self._requested_at = 0.0

    def listen(self) -> None:
        """Take signals as requests, but for those that the parent process had this one ignore."""
        for number in (signal.SIGINT, signal.SIGTERM, *_FORWARDED):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._receive)

    def _receive(self, number: int, _: Optional[FrameType]) -> None:
        now = time.monotonic()
        if self.status:
            is_later = now - self._requested_at > SAME_REQUEST_SECONDS
            if is_later and number not in _FORWARDED:
                os._exit(self.status)
            return
        self._requested_at = now
        self.status = _SIGNAL_STATUS + _FORWARDED.get(number, number)


def run_stoppable(main: Callable[[], Optional[int]]) -> NoReturn:
    """Run a program that cleans up when Ctrl-C, ``kill`` or a closed terminal stops it.

    It ends with one line and the shell's status for the signal. A signal that the parent process
    had it ignore (``nohup``) stays ignored.
    """
    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        run_program(main)
    except Stopped as stopped:
        (number,) = stopped.args
        name = signal.Signals(number).name
        print(f"stopped by {name}: no unfinished file is left behind", file=sys.stderr)
        sys.stdout.flush()
        # Not sys.exit, which would wait for the threads.
        os._exit(_SIGNAL_STATUS + number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay a stop to the end of a step that must not be left half done."""
    waiting: list[int] = []
    held = [number for number in _STOP_SIGNALS if signal.getsignal(number) is _stop]
    for number in held:
        signal.signal(number, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        for number in held:
            signal.signal(number, _stop)
    if waiting:
        _stop(waiting[0], None)


def _stop(number: int, _: Optional[FrameType]) -> None:
    # A second signal would interrupt the removal of files.
    for other in _STOP_SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)
