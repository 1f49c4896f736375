"""The guard of one process, with the shell in place of training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parallel.launch.guard import BEGUN
from tests.support import processes
from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[3]
# Prints that it is ready; answers a signal after a moment with a status of its own.
LISTENS = "trap 'sleep 0.3; echo saved; exit 3' TERM INT HUP\n"
IGNORES = "trap '' TERM"
LOOP = "\necho ready; while :; do sleep 0.01; done"


@contextmanager
def guarded(*command: str, sharers: int = 1, **variables: str) -> Iterator[subprocess.Popen]:
    # A process that ignores a signal hands that on to its children.
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (2, 1)}
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "parallel.launch.guard", str(sharers), *command],
            cwd=ROOT, env={**clean_environment(), **variables}, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    try:
        assert process.stdout.readline() == f"{BEGUN.decode()}\n"
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


# A guard that gets a signal as soon as its command has started.
HASTY = """
import os, signal, subprocess, sys
from parallel.launch import guard

started = subprocess.Popen

def popen(*args, **kwargs):
    process = started(*args, **kwargs)
    # The command has its own handler by then.
    assert process.stdout.readline() == b"ready\\n"
    os.kill(os.getpid(), signal.SIGTERM)
    return process

subprocess.Popen = lambda *args, **kwargs: popen(*args, stdout=subprocess.PIPE, **kwargs)
os._exit(guard.main())
"""


def wait_for_handlers(process: subprocess.Popen) -> None:
    """Wait until the guard, whose command may be quicker, has the last of its handlers."""
    end = time.monotonic() + 60
    caught = 0
    while not caught >> (signal.SIGHUP - 1) & 1:
        assert time.monotonic() < end
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        (caught,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))


def test_status_and_output_are_those_of_the_command() -> None:
    with guarded("sh", "-c", "echo out; echo err >&2; exit 7") as process:
        assert process.wait(60) == 7
        assert (process.stdout.read(), process.stderr.read()) == ("out\n", "err\n")
    # The command gets the signals that the guard holds back at its start.
    program = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with guarded(sys.executable, "-c", program) as process:
        assert process.stdout.read() == "set()\n"
    with guarded("/no/such/command") as process:
        assert process.wait(60) == 127
        errors = process.stderr.read()
    assert errors == "error: /no/such/command cannot be started: No such file or directory\n"


def test_a_signal_between_the_start_and_the_handlers_is_forwarded() -> None:
    process = subprocess.run(
        [sys.executable, "-c", HASTY, "1", "sh", "-c", LISTENS + LOOP],
        cwd=ROOT, env=clean_environment(), stdin=subprocess.PIPE, timeout=60, check=False,
    )  # fmt: skip
    assert process.returncode == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_guard_are_forwarded(number: int) -> None:
    with guarded("sh", "-c", LISTENS + LOOP) as process:
        assert process.stdout.readline() == "ready\n"
        wait_for_handlers(process)
        process.send_signal(number)
        # Its input stays open: nothing else ends the command.
        assert process.wait(60) == 3
        assert process.stdout.readline() == "saved\n"


@pytest.mark.parametrize(
    ("ignored", "line", "status"),
    [("", "INT", 3), ("", "TERM", 3), ("", "KILL", 137), ("", None, 3), (IGNORES, None, 137)],
)
def test_a_line_is_a_signal_and_the_end_of_its_input_a_request_before_the_kill(
    ignored: str, line: str | None, status: int
) -> None:
    with guarded("sh", "-c", LISTENS + ignored + LOOP) as process:
        assert process.stdout.readline() == "ready\n"
        if line is None:
            process.stdin.close()
        else:
            process.stdin.write(f"STOP\n\nUSR1\n{line}\n")
        assert process.wait(60) == status
        assert process.stdout.read() == ("saved\n" if status == 3 else "")


def test_children_that_the_command_left_are_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with guarded("sh", "-c", f"sleep 300 >&- 2>&- & echo $! > {file}") as process:
        assert process.wait(60) == 0
    assert not processes.left([int(file.read_text())])


@pytest.mark.parametrize("sharers, chosen", [(1, ""), (10_000, ""), (2, "17")])
def test_sharers_get_equal_parts_of_the_processors(sharers: int, chosen: str) -> None:
    variables = {"OMP_NUM_THREADS": chosen} if chosen else {}
    with guarded("sh", "-c", "echo $OMP_NUM_THREADS", sharers=sharers, **variables) as process:
        output = process.stdout.read()
    expected = chosen or str(max(1, len(os.sched_getaffinity(0)) // sharers))
    assert output.strip() == expected
