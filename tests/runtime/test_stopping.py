from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Union

ROOT = Path(__file__).parents[2]


def test_a_signal_waits_for_the_end_of_a_step() -> None:
    program = """
import os, signal
from runtime.stopping import run_stoppable, undisturbed

def main():
    with undisturbed():
        os.kill(os.getpid(), signal.SIGTERM)
        print("the step is done")
    print("the program goes on")

run_stoppable(main)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 128 + signal.SIGTERM
    assert result.stdout == "the step is done\n"
    assert result.stderr == "stopped by SIGTERM: no unfinished file is left behind\n"


def test_an_ignored_signal_stays_ignored() -> None:
    program = """
import os, signal
from runtime.stopping import run_stoppable, undisturbed

signal.signal(signal.SIGHUP, signal.SIG_IGN)

def main():
    with undisturbed():
        os.kill(os.getpid(), signal.SIGHUP)
    return 7

run_stoppable(main)
"""
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60)
    assert result.returncode == 7


REQUEST = """
import os, signal, sys, time
from runtime.stopping import StopRequest

request = StopRequest()
request.listen()
for argument in sys.argv[1:]:
    if argument == "wait":
        time.sleep(1.1)
        continue
    os.kill(os.getpid(), int(argument))
    print(request.status, flush=True)
"""


def ask(*signals: Union[int, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", REQUEST, *map(str, signals)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_the_first_signal_is_a_request() -> None:
    assert ask(signal.SIGTERM).stdout == "143\n"
    assert ask(signal.SIGINT).stdout == "130\n"
    # mpirun forwards these instead.
    assert ask(signal.SIGUSR1).stdout == "130\n"
    assert ask(signal.SIGUSR2).stdout == "143\n"


def test_the_second_signal_ends_at_once() -> None:
    result = ask(signal.SIGINT, "wait", signal.SIGTERM, signal.SIGTERM)
    assert (result.returncode, result.stdout) == (130, "130\n")


def test_a_forwarded_signal_may_be_repeated() -> None:
    result = ask(signal.SIGUSR2, "wait", signal.SIGUSR2)
    assert (result.returncode, result.stdout) == (0, "143\n" * 2)
    assert ask(signal.SIGUSR1, "wait", signal.SIGTERM).returncode == 130


def test_a_signal_that_comes_twice_at_once_is_one_request() -> None:
    """``timeout`` sends it to the program, and to the program's process group."""
    result = ask(signal.SIGTERM, signal.SIGTERM, signal.SIGTERM)
    assert (result.returncode, result.stdout) == (0, "143\n" * 3)
