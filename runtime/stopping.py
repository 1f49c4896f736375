"""Programs that end well when they are told to end.

Python cleans up behind an exception, not when a signal ends the process. There are two ways to put
that right. A tool that may stop anywhere (``run_stoppable``) turns the signal into an exception. A
training run must not stop anywhere: its ranks have to agree on the update after which they end. It
asks a ``StopRequest`` now and then.

The status is always the shell's for the signal: 130 for Ctrl-C, 143 for SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from runtime.errors import run_program

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What a shell reports for a program that a signal has ended.
_SIGNAL_STATUS = 128
# mpirun ends all ranks when it gets one of the usual signals, but hands these on to them; so run.sh
# uses them in their place.
_HANDED_ON: dict[int, int] = {signal.SIGUSR1: signal.SIGINT, signal.SIGUSR2: signal.SIGTERM}


class Stopped(BaseException):
    """A signal asks the program to end. No ``Exception``: nobody shall take it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


class StopRequest:
    """Whether somebody has asked this process to end; a second signal ends it at once."""

    def __init__(self) -> None:
        self._status = 0

    @property
    def status(self) -> int:
        """The exit status that belongs to the request, 0 if there is none."""
        return self._status

    def listen(self) -> None:
        """Take signals as requests, but for those that whoever started the program has ignored."""
        for number in (signal.SIGINT, signal.SIGTERM, *_HANDED_ON):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._status:
            os._exit(self._status)
        meant = _HANDED_ON.get(number, number)
        self._status = _SIGNAL_STATUS + meant


def run_stoppable(main: Callable[[], int | None]) -> NoReturn:
    """Run a program that cleans up behind itself when it is told to stop.

    Ctrl-C, ``kill`` and a closed terminal end it with one line and the shell's status for the
    signal (130 for Ctrl-C). A signal that whoever started the program had it ignore (``nohup``)
    stays ignored.
    """
    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        run_program(main)
    except Stopped as stopped:
        # Only here: importing it takes longer than answering a wrong option.
        from tqdm import tqdm

        tqdm.write(
            f"stopped by {stopped.signal.name}: no unfinished file is left behind", file=sys.stderr
        )
        sys.stdout.flush()
        # Not sys.exit, which would wait for the threads.
        os._exit(_SIGNAL_STATUS + stopped.signal)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let a signal to stop wait for the end of a step that must not be left half done."""
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


def _stop(number: int, _: FrameType | None) -> None:
    # Once is enough: a second one would come in the middle of removing files.
    for other in _STOP_SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)
