"""How a process of a job is started, and its guard, with the shell in place of training."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parallel.launch import job, ssh
from parallel.launch.guard import BEGUN
from parallel.launch.job import ProcessSpec, by_ssh
from parallel.parameter_server.assignment import SCHEDULER, WORKER
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


def spec(role: str) -> ProcessSpec:
    return ProcessSpec(role, 0, "there", 2, ["python", "it's.py"], {"GROUPING_WORKER": "3"})


def test_variables_of_the_libraries_are_sent_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "MXNET_SEED", "CUDA_VISIBLE_DEVICES", "SECRET"):
        monkeypatch.setenv(name, f"value of {name}")
    command, environment = by_ssh(spec(WORKER))
    assert environment is None
    assert (command[0], command[-2]) == ("ssh", "there")
    words = shlex.split(command[-1])
    assert words[:2] == ["cd", words[1]] and words[2:4] == ["&&", "exec"]
    assert words[-2:] == ["python", "it's.py"]
    assert "value of" not in " ".join(command) and "GROUPING" not in " ".join(command)
    sent = ssh.first_input(spec(WORKER).variables).decode().split("\0")
    assert {
        "MXNET_SEED=value of MXNET_SEED",
        "CUDA_VISIBLE_DEVICES=value of CUDA_VISIBLE_DEVICES",
        "GROUPING_WORKER=3",
        f"PATH={Path(sys.executable).parent}:value of PATH",
    } < set(sent)
    assert "SECRET" not in " ".join(sent)
    # The scheduler stays on this machine.
    command, environment = by_ssh(spec(SCHEDULER))
    assert "ssh" not in command and environment is not None
    assert environment["GROUPING_WORKER"] == "3"


def run_job(folder: Path, program: str, ssh: str, **variables: str) -> subprocess.CompletedProcess:
    """Run it where ssh is a script."""
    (folder / "ssh").write_text(f"#!/bin/sh\n{ssh}\nexec sleep 300\n")
    (folder / "ssh").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, text=True,
        env={**os.environ, "PATH": path, **variables}, capture_output=True, timeout=90, check=False,
    )  # fmt: skip


SHORT = """
import sys
from parallel.launch import job, ssh
ssh.ANSWER_SECONDS = 1.0
spec = job.ProcessSpec("worker", 0, "there", 1, ["true"], {})
sys.exit(job.run([spec], job.by_ssh, tolerates=False))
"""


def test_a_connection_that_leads_to_no_guard_ends(tmp_path: Path) -> None:
    """As where a server accepts a connection and says nothing, after all hosts have reported."""
    result = run_job(tmp_path, SHORT, "")
    assert result.returncode == 128 + signal.SIGKILL
    assert "launch: host there: no connection by ssh (no answer in 1 s); it" in result.stderr
    assert "Traceback" not in result.stderr


STARTING = """
import sys
from parallel.launch import job
spec = job.ProcessSpec("worker", 0, "there", 1, ["true"], {})
sys.exit(job.run([spec] * (job._MOST_LOGINS + 3), job.by_ssh, tolerates=False))
"""


@pytest.mark.parametrize(("last", "status"), [("kill -TERM $PPID", 143), ("exit 7", 7)])
def test_a_job_ends_while_its_processes_start(tmp_path: Path, last: str, status: int) -> None:
    """By a signal or a failure, also where the next process waits for connections before it."""
    began, started = time.monotonic(), tmp_path / "started"
    silent = 'echo >>"$STARTED"; [ "$(wc -l <"$STARTED")" = 8 ] && sleep 1 && eval "$LAST"'
    result = run_job(tmp_path, STARTING, silent, STARTED=str(started), LAST=last)
    assert result.returncode == status, result.stderr
    assert time.monotonic() - began < ssh.ANSWER_SECONDS - 5
    # One more if the first of them is the one that ends.
    assert 8 == job._MOST_LOGINS <= started.read_text().count("\n") <= 9


def test_what_a_process_prints_does_not_command_the_terminal() -> None:
    reader, writer = os.pipe()
    job._print(spec(WORKER), [b"loss 0.5 \xc3\xa9", b"\x1b]0;x\x07\xe2\x80\xae\xff", b""], writer)
    os.close(writer)
    with open(reader, "rb") as file:
        assert file.read().decode().splitlines() == [
            f"{spec(WORKER)}: loss 0.5 é", f"{spec(WORKER)}: " + r"\x1b]0;x\x07\u202e\xff",
        ]  # fmt: skip
