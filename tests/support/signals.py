"""Signals in the processes of tests, which also under ``nohup`` react as users' processes do."""

from __future__ import annotations

import signal

_SENT_BY_TESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def keep_ignored_signals_from_children() -> None:
    """Go on ignoring what this process ignores, without its children inheriting that.

    A signal that a function handles has the system's default in a new program.
    """
    for number in _SENT_BY_TESTS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
