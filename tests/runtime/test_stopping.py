from __future__ import annotations

import signal
import sys

import pytest

from tests.support.launch import finish


def run(program: str, *arguments: object) -> tuple[int, str, str]:
    done = finish(sys.executable, "-c", program, *arguments, status=None)
    return done.returncode, done.stdout, done.stderr


STEP = """
import os, signal
from runtime.stopping import run_stoppable, undisturbed

signal.signal(signal.SIGHUP, signal.SIG_IGN)

def main():
    with undisturbed():
        os.kill(os.getpid(), signal.SIG)
        print("the step is done")
    print("the program goes on")
    return 7

run_stoppable(main)
"""


def test_a_signal_waits_for_the_end_of_a_step() -> None:
    said = "stopped by SIGTERM: no unfinished file is left behind\n"
    assert run(STEP.replace("SIG)", "SIGTERM)")) == (143, "the step is done\n", said)
    # An ignored one stays ignored.
    status, output, errors = run(STEP.replace("SIG)", "SIGHUP)"))
    assert (status, errors) == (7, "") and output.endswith("the program goes on\n")


REQUEST = """
import os, sys
from runtime import stopping

now = 0.0
stopping.time.monotonic = lambda: now
request = stopping.StopRequest()
request.listen()
for argument in sys.argv[1:]:
    if argument == "wait":
        now += 1.1
    elif argument == "soon":
        now += 0.9
    else:
        os.kill(os.getpid(), int(argument))
        print(request.status, flush=True)
"""
INT, TERM, USR1, USR2 = map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))


@pytest.mark.parametrize(
    ("signals", "status", "printed"),
    [
        # mpirun forwards these instead, which may be repeated.
        ([USR1, "wait", USR1], 0, "130\n130\n"),
        ([USR2, "wait", USR2], 0, "143\n143\n"),
        # timeout sends a signal to the program, and to the program's process group.
        ([TERM, TERM, "soon", TERM], 0, "143\n143\n143\n"),
        # A later one ends the process at once.
        ([INT, "wait", TERM, TERM], 130, "130\n"),
        ([USR1, "wait", TERM], 130, "130\n"),
    ],
)
def test_the_first_signal_is_a_request(signals, status, printed) -> None:
    assert run(REQUEST, *signals) == (status, printed, "")
