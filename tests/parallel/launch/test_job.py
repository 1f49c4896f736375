"""How a process of a job is started on another machine."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallel.launch import job, ssh
from parallel.launch.job import ProcessSpec, by_ssh
from parallel.parameter_server.assignment import SCHEDULER, WORKER


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
        [sys.executable, "-c", program], cwd=Path(__file__).resolve().parents[3], text=True,
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
