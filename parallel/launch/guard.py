"""Runs one process of a job, and ends it with all that it has started when the launcher is gone.

    python -m parallel.launch.guard SHARERS COMMAND...

The standard input is a pipe from the launcher, or from the ssh server that the launcher is
connected to. A line is the name of a signal for the command's process group. The end of the input
means that the launcher is gone: the group gets SIGTERM, and later SIGKILL. So no process of a job
outlives the launcher, on any machine. Signals are lines because ssh forwards none. The guard
imports little: each process of a job has one.

SHARERS is how many workers share the processors of the machine.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from runtime import environment

# Between SIGTERM and SIGKILL, for processes whose launcher is gone.
_GRACE_SECONDS = 5.0
BEGUN = b"the guard has begun"
"""The first line of the output, by which the launcher knows that ssh has let it in."""
_SIGNALS = ("INT", "TERM", "KILL")
_STATUS_OF_SIGNALS = 128
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, linux/prctl.h


def main() -> int:
    """Run the command to its end; returns its status, or 128 + the signal that ended it."""
    sharers, command = int(sys.argv[1]), sys.argv[2:]
    environment.prepare_threads(sharers)
    libc = ctypes.CDLL(None)
    os.write(1, BEGUN + b"\n")
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # The command must not outlive the guard either.
            preexec_fn=lambda: libc.prctl(_DEATH_SIGNAL, signal.SIGKILL),
        )
    except OSError as error:
        print(f"error: {command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127
    threading.Thread(target=_follow_input, args=(process.pid,), daemon=True).start()
    # Not reaped before the rest of its group is killed: until then its number is the group's.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    _send(process.pid, signal.SIGKILL)
    status = process.wait()
    return _STATUS_OF_SIGNALS - status if status < 0 else status


def _follow_input(group: int) -> None:
    """Send the signals that the launcher asks for; when its pipe ends, end the group."""
    for line in sys.stdin:
        name = line.strip()
        if name in _SIGNALS:
            _send(group, getattr(signal, f"SIG{name}"))
    _send(group, signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    _send(group, signal.SIGKILL)


def _send(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    # Without exit handlers, which would wait for the thread that reads.
    os._exit(main())
