"""Processes that a test starts react to signals as users' do, however the tests were started.

A process inherits what its parent ignores. ``nohup`` ignores SIGHUP and a shell's ``&`` SIGINT, and
under ``nohup make test &`` a program that a test told to stop by such a signal would never hear of
it. A signal that is handled, by a function that does nothing, is ignored just as well; but a new
program starts with the system's default for it.
"""

from __future__ import annotations

import signal

_SENT_BY_TESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def keep_ignored_signals_from_children() -> None:
    """Go on ignoring what this process ignores, without its children inheriting that."""
    for number in _SENT_BY_TESTS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
