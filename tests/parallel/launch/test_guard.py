"""How processes of a job start and end, and their guard, with the shell in place of training."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parallel.launch import job, ssh
from parallel.launch.guard import BEGUN
from parallel.launch.job import ProcessSpec, by_ssh
from parallel.parameter_server.assignment import SCHEDULER, SERVER, WORKER
from tests.support import processes
from tests.support.launch import ROOT, clean_environment

# Pipes of a job that has ended are left to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

# Prints that it is ready; answers a signal with a status of its own.
LISTENS = "trap 'sleep 0.1; echo saved; exit 3' TERM INT HUP\n"
LOOP = "\necho ready; while :; do sleep 0.01; done"
GUARD = """
import os
from parallel.launch import guard
guard._GRACE_SECONDS = 0.5
os._exit(guard.main())
"""
# A guard that gets a signal as soon as its command, which has its own handler, has started.
HASTY = """
import os, signal, subprocess
from parallel.launch import guard
started = subprocess.Popen

def popen(*args, **kwargs):
    process = started(*args, stdout=subprocess.PIPE, **kwargs)
    assert process.stdout.readline() == b"ready\\n"
    os.kill(os.getpid(), signal.SIGTERM)
    return process

subprocess.Popen = popen
os._exit(guard.main())
"""
READS = "read line; sleep 0.3"


@contextmanager
def guarded(*command: str, sharers: int = 1, **variables: str) -> Iterator[subprocess.Popen]:
    with subprocess.Popen(
        ["env", "--default-signal=INT,HUP", sys.executable, "-c", GUARD, str(sharers), *command],
        cwd=ROOT, env={**clean_environment(), **variables}, text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout.readline() == f"{BEGUN.decode()}\n"
            yield process
        finally:
            process.kill()


def test_status_output_and_threads_are_those_of_the_command(tmp_path: Path) -> None:
    file, out = tmp_path / "pid", "echo out $OMP_NUM_THREADS; echo err >&2;"
    left = f"sleep 300 >&- 2>&- & echo $! > {file}; exit 7"
    with guarded("sh", "-c", out + left, sharers=10_000) as process:
        assert process.wait(60) == 7
        assert (process.stdout.read(), process.stderr.read()) == ("out 1\n", "err\n")
    assert not processes.left([int(file.read_text())])
    # The command gets the signals that the guard holds back at its start.
    code = "import signal, os; print(signal.pthread_sigmask(0, []), os.environ['OMP_NUM_THREADS'])"
    with guarded(sys.executable, "-c", code, sharers=2, OMP_NUM_THREADS="17") as process:
        assert process.stdout.read() == "set() 17\n"
    with guarded("/no/such/command") as process:
        assert process.wait(60) == 127
        said = "error: /no/such/command cannot be started: No such file or directory\n"
        assert process.stderr.read() == said


def test_a_signal_between_the_start_and_the_handlers_is_forwarded() -> None:
    process = subprocess.run(
        [sys.executable, "-c", HASTY, "1", "sh", "-c", LISTENS + LOOP],
        cwd=ROOT, env=clean_environment(), stdin=subprocess.PIPE, timeout=60, check=False,
    )  # fmt: skip
    assert process.returncode == 3


def test_signals_to_the_guard_and_lines_are_signals_to_the_command() -> None:
    traps = "".join(f"trap 'echo {name}' {name}\n" for name in ("INT", "TERM", "HUP"))
    with guarded("sh", "-c", traps + LOOP) as process:
        assert process.stdout.readline() == "ready\n"
        # The command may be quicker than the guard, whose handler for SIGHUP is its last.
        caught = 0
        while not caught >> (signal.SIGHUP - 1) & 1:
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            (caught,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(number)
            assert process.stdout.readline() == f"{number.name[3:]}\n"
        for line in ("INT", "TERM"):
            process.stdin.write(f"STOP\n\nUSR1\n{line}\n")
            assert process.stdout.readline() == f"{line}\n"
        process.stdin.write("KILL\n")
        assert process.wait(60) == 137


@pytest.mark.parametrize(("ignored", "status"), [("", 3), ("trap '' TERM", 137)])
def test_the_end_of_its_input_is_a_request_before_the_kill(ignored: str, status: int) -> None:
    with guarded("sh", "-c", LISTENS + ignored + LOOP) as process:
        assert process.stdout.readline() == "ready\n"
        process.stdin.close()
        assert process.wait(60) == status
        assert process.stdout.read() == ("saved\n" if status == 3 else "")


def spec(role: str = WORKER, *command: str, number: int = 0) -> ProcessSpec:
    return ProcessSpec(role, number, "there", 2, command, {"GROUPING_X": "3"})


def shells(worker: str, other: str, server: str, scheduler: str) -> list[ProcessSpec]:
    """A scheduler, a server and two workers; they read the lines that a guard would get."""
    roles = (SCHEDULER, 0), (SERVER, 0), (WORKER, 0), (WORKER, 1)
    return [
        spec(role, "sh", "-c", script, number=number)
        for (role, number), script in zip(roles, (scheduler, server, worker, other))
    ]


def plainly(spec: ProcessSpec) -> tuple[list[str], dict[str, str]]:
    return list(spec.command), {"PATH": os.environ["PATH"]}


def test_variables_of_the_libraries_are_sent_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "MXNET_SEED", "SECRET"):
        monkeypatch.setenv(name, f"value of {name}")
    command, environment = by_ssh(spec(WORKER, "python", "it's.py"))
    assert (environment, command[0], command[-2]) == (None, "ssh", "there")
    words = shlex.split(command[-1])
    assert [words[0], *words[2:4], *words[-2:]] == ["cd", "&&", "exec", "python", "it's.py"]
    assert "value of" not in " ".join(command) and "GROUPING" not in " ".join(command)
    sent = ssh.first_input(spec().variables).decode().split("\0")
    path = f"PATH={Path(sys.executable).parent}:value of PATH"
    assert {"MXNET_SEED=value of MXNET_SEED", "GROUPING_X=3", path} < set(sent)
    assert "SECRET" not in " ".join(sent)
    command, environment = by_ssh(spec(SCHEDULER))
    assert "ssh" not in command and environment is not None and environment["GROUPING_X"] == "3"


@pytest.mark.parametrize(("scripts", "tolerates", "status", "said"), [
    ((READS, "exit 3", READS, READS), False, 3, "worker 1 on there ended with status 3; end"),
    ((READS, "exit 255", READS, READS), False, 255, "status 255 (ssh: no connection, or one"),
    ((READS, READS, "exit 0", READS), True, 1, "server 0 on there ended with status 0; ending"),
    ((READS, READS, READS, "kill -9 $$"), True, 137, "scheduler on there ended with status 137 "
     "(SIGKILL); ending the job"),
    (("sleep 0.5", "exit 7", READS, READS), True, 0, "status 7; the job goes on without it"),
    (("sleep 0.5; exit 8", "exit 7", READS, READS), True, 7, "status 8; the job goes on"),
])  # fmt: skip
def test_a_process_that_dies_ends_the_job_or_is_tolerated(capfd, scripts, tolerates, status, said):
    assert job.run(shells(*scripts), plainly, tolerates=tolerates) == status
    announced = capfd.readouterr().err.splitlines()
    assert len(announced) == (2 if "exit 8" in scripts[0] else 1)
    assert announced[-1].startswith("launch: ") and said in announced[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_workers_save(capfd, number: signal.Signals) -> None:
    """The others end after the workers."""
    saves = "read line; sleep 0.3; echo saves after $line"
    signals = f"sleep 0.2; kill -{number.name[3:]} $PPID; {saves}"
    ends = "read line; echo ends after $line"
    assert job.run(shells(signals, saves, ends, ends), plainly, tolerates=False) == 128 + number
    output, errors = capfd.readouterr()
    lines, sent = output.splitlines(), "INT" if number == signal.SIGINT else "TERM"
    assert sorted(lines[:2]) == [f"worker {k}: saves after {sent}" for k in (0, 1)]
    assert sorted(lines[2:]) == ["scheduler: ends after TERM", "server 0: ends after TERM"]
    assert errors == f"launch: {number.name}: asking the workers to stop\n"


def test_a_second_signal_ends_at_once_and_who_ignores_it_is_killed(capfd, monkeypatch) -> None:
    """Not that of timeout, which sends its signal to the launcher and to its group."""
    monkeypatch.setattr(job, "SAME_REQUEST_SECONDS", 1.0)
    for name in ("_END_SECONDS", "_GIVE_UP_SECONDS"):
        monkeypatch.setattr(job, name, 0.3)
    signals = "kill -INT $PPID; sleep 0.1; " * 2 + "sleep 1.5; echo on; kill -INT $PPID"
    reads = 'while read line; do echo $line; [ "$line" = KILL ] && exit 9; done'
    worker = spec(WORKER, "sh", "-c", f"(sleep 0.2; {signals}) & {reads}")
    assert job.run([worker, spec(SERVER, "sleep", "300")], plainly, tolerates=False) == 130
    output, errors = capfd.readouterr()
    assert output.splitlines() == [f"worker 0: {line}" for line in ("INT", "on", "TERM", "KILL")]


def stub_ssh(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a script in place of ssh; processes that ignore signals are not waited for."""
    for name in ("_CHECKPOINT_SECONDS", "_END_SECONDS", "_GIVE_UP_SECONDS"):
        monkeypatch.setattr(job, name, 0.2)
    (folder / "ssh").write_text(f"#!/bin/sh\n{script}\nexec sleep 300\n")
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_connection_that_leads_to_no_guard_ends(tmp_path, monkeypatch, capfd) -> None:
    """As where a server accepts a connection and says nothing, after all hosts have reported."""
    stub_ssh(tmp_path, "", monkeypatch)
    monkeypatch.setattr(ssh, "ANSWER_SECONDS", 0.3)
    assert job.run([spec()], by_ssh, tolerates=False) == 128 + signal.SIGKILL
    said = "launch: host there: no connection by ssh (no answer in 0 s); it"
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(("last", "status"), [("kill -TERM $PPID", 143), ("exit 7", 7)])
def test_a_job_that_ends_starts_no_more_processes(tmp_path, monkeypatch, last, status) -> None:
    """The eighth of those that log in ends it, while the next one waits for connections."""
    started = tmp_path / "started"
    eighth = f'[ "$(wc -l <{started})" = 8 ] && sleep 0.5 && {last}'
    stub_ssh(tmp_path, f"echo >>{started}; {eighth}", monkeypatch)
    assert job.run([spec()] * 11, by_ssh, tolerates=False) == status
    assert started.read_text().count("\n") == 8


def test_few_log_in_to_a_host_at_the_same_time(tmp_path, monkeypatch) -> None:
    logins = tmp_path / "logins"
    script = f"echo in >>{logins}; sleep 0.2; echo out >>{logins}; echo; exit 0"
    stub_ssh(tmp_path, script, monkeypatch)
    assert job.run([spec()] * 14, by_ssh, tolerates=False) == 0
    words = logins.read_text().split()
    waiting = [words[:end].count("in") - words[:end].count("out") for end in range(len(words))]
    assert words.count("out") == 14 and 1 < max(waiting) <= 8


def test_a_process_does_not_start_after_a_signal(tmp_path: Path) -> None:
    def start(one: ProcessSpec) -> tuple[list[str], dict[str, str]]:
        os.kill(os.getpid(), signal.SIGTERM)
        return plainly(one)

    started = tmp_path / "started"
    assert job.run([spec(WORKER, "touch", str(started))], start, tolerates=False) == 143
    assert not started.exists()


def test_what_a_process_prints_does_not_command_the_terminal(capfd) -> None:
    printing = spec(WORKER, "printf", r"loss 0.5 é\n\033]0;x\007\342\200\256\377\n\n")
    assert job.run([printing], plainly, tolerates=False) == 0
    assert capfd.readouterr().out.splitlines() == [
        "worker 0: loss 0.5 é", "worker 0: " + r"\x1b]0;x\x07\u202e\xff",
    ]  # fmt: skip
