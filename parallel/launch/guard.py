"""One process of a job, and whoever it starts, held on a leash.

    python -m parallel.launch.guard SHARERS COMMAND...

Its standard input is a pipe from the launcher, or from the ssh server that the launcher speaks to.
A line on it is the name of a signal for the command's process group. Its end means that the
launcher is gone, however it went: the group is told to end, and killed when it does not. So nothing
of a job outlives its launcher, on no machine. Signals are written rather than sent because ssh
hands on none. Nothing but the standard library is imported: each process has a guard of its own.

SHARERS is how many workers share the processors of the machine, which each get a part of them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

from runtime import processors

GRACE_SECONDS = 5.0
"""From the request to end until the end, for processes whose launcher is gone."""
_SIGNALS = ("INT", "TERM", "KILL")
_HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STATUS_OF_SIGNALS = 128
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, linux/prctl.h


def main() -> int:
    """Run the command to its end; returns its status, or 128 + the signal that ended it."""
    sharers, command = int(sys.argv[1]), sys.argv[2:]
    threads = max(1, processors.available() // sharers)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    libc = ctypes.CDLL(None)

    def begin() -> None:
        # The command shall not outlive its guard either.
        libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)

    # One that came between the start and the handlers would end the guard, and kill the command.
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=begin,
        )
    except OSError as error:
        print(f"error: {command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127
    for number in _HANDED_ON:
        signal.signal(number, lambda number, _: _send(process.pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
    threading.Thread(target=_obey, args=(process.pid,), daemon=True).start()
    # Not reaped before the rest of its group is gone: its number is still that of the group.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    _send(process.pid, signal.SIGKILL)
    status = process.wait()
    return _STATUS_OF_SIGNALS - status if status < 0 else status


def _obey(group: int) -> None:
    """Send what the launcher asks for, until it is gone."""
    for line in sys.stdin:
        name = line.strip()
        if name in _SIGNALS:
            _send(group, getattr(signal, f"SIG{name}"))
    _send(group, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    _send(group, signal.SIGKILL)


def _send(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    # No exit handlers: they would wait for the thread that reads.
    os._exit(main())
