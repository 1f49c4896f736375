"""The launcher, and guards of its processes, with scripts in place of training and of servers."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from parallel.launch import job, ssh
from parallel.launch.guard import BEGUN
from parallel.launch.job import ProcessSpec
from parallel.parameter_server.assignment import SCHEDULER, SERVER, WORKER
from runtime import processors
from tests.support import processes
from tests.support.launch import ROOT, clean_environment, write_program

# With the Python code of servers and scheduler as its first argument.
START = """
import sys
from parallel.launch.__main__ import main
from runtime.errors import run_program
run_program(lambda: main(sys.argv[2:], (sys.executable, "-c", sys.argv[1])))
"""
# Each writes its process id into a file of its name, so that the test finds it.
PRESENT = """
import os, pathlib, signal, subprocess, sys, time
from parallel.parameter_server.assignment import find
role, worker = os.environ["DMLC_ROLE"], int(os.environ["GROUPING_WORKER"])
name = f"worker-{worker}" if role == "worker" else f"{role}-{os.getpid()}"
path = pathlib.Path(os.environ["PRESENCE"], name)
path.with_suffix(".new").write_text(str(os.getpid()))
path.with_suffix(".new").rename(path)
"""
STAY = PRESENT + "time.sleep(300)"
# It ignores signals and has a child.
STUBBORN = PRESENT + """
[signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)]
child = subprocess.Popen(["sleep", "300"])
path.with_name(f"child-{worker}").write_text(str(child.pid))
time.sleep(300)
"""
SAVE = PRESENT + """
def save(number, _):
    time.sleep(0.5); print('saved', flush=True); os._exit(128 + number)
[signal.signal(number, save) for number in (signal.SIGINT, signal.SIGTERM)]
path.with_name(f'ready-{worker}').touch()
time.sleep(300)
"""
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
READS = "read line; sleep 0.3"


class Dummies:
    def __init__(
        self, folder: Path, worker: str, *options: object, serve: str = STAY,
        more: tuple[str, ...] = ("--kv-store", "dist_async"), **variables: str,
    ):  # fmt: skip
        self.folder = folder / "presence"
        self.folder.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, serve, *map(str, options), "--",
             sys.executable, "-c", worker, *more],
            cwd=ROOT, env={**clean_environment(), "PRESENCE": str(self.folder), **variables},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def files(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if path.suffix != ".new"]

    def wait_for_files(self, count: int) -> None:
        end = time.monotonic() + 60
        while len(self.files()) < count:
            assert time.monotonic() < end and self.process.poll() is None, self.files()
            time.sleep(0.02)

    def ends(self, left_seconds: float = 0.5) -> tuple[int, str, str]:
        output, errors = self.process.communicate(timeout=60)
        pids = [int(path.read_text()) for path in self.files() if path.stat().st_size]
        assert not processes.left(pids, left_seconds)
        return self.process.returncode, output, errors


def test_every_process_has_its_assignment_and_its_name_before_its_output(tmp_path: Path) -> None:
    program = PRESENT + "print(find(os.environ), os.environ['OMP_NUM_THREADS'])"
    # Servers that are still starting when the last worker ends say nothing any more.
    begun = f"[name for name in os.listdir({str(tmp_path)!r}) if name.startswith('begun')]"
    worker = program + f"\nwhile len({begun}) < 3:\n    time.sleep(0.01)\n"
    worker += "print('look', file=sys.stderr); sys.stdout.write('no end of line')"
    files = {
        "hosts": "localhost slots=1\n127.0.0.2 slots=2\n",
        "groups": "localhost 127.0.0.2\n127.0.0.2\n",
        "data-sharding": "0 0.4\n0.4 0.8\n0.9 1\n",
        # The faster one first, whose number MXNet makes the last.
        "server-hosts": "localhost 4\n127.0.0.2 1\n",
    }
    options: list[object] = ["-n", 3, "-s", 2]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        options += ["-H" if name == "hosts" else f"--{name}", tmp_path / name]
    options += ["--bucket-elements", 5000, "--trace", tmp_path / "trace"]
    serve = program + f"\nopen(f'{tmp_path}/begun-{{os.getpid()}}', 'w').close(); time.sleep(300)"
    more = ("--kv-store=dist_gsync", "--data-allocator", "1")
    status, output, errors = Dummies(tmp_path, worker, *options, serve=serve, more=more).ends()
    assert status == 0, errors
    found = {line.partition(": ")[0]: line for line in output.splitlines() if "(role=" in line}
    parts = (
        "root_host='127.0.0.1'",
        "groups=((0, 1), (2,)), shares=(Share(start=0.9, end=1.0), Share(start=0.0, end=0.4), ",
        "server_speeds=(1.0, 4.0)",
        f"bucket_elements=5000, trace='{tmp_path}/trace')",
    )
    for name, number in (("worker 0", 1), ("worker 2", 2), ("server 0", 1), ("server 1", 2)):
        line = found[name]
        assert all(part in line for part in parts), errors
        assert f"(role='{name[:6]}'" in line and f"node_host='127.0.0.{number}'" in line
        assert line.endswith(f" {max(1, processors.available() // number)}")
    assert "worker=2, local_worker=1" in found["worker 2"]
    for k in range(3):
        assert f"worker {k}: no end of line\n" in output and f"worker {k}: look\n" in errors
    shares = tmp_path / "data-sharding"
    assert f"launch: worker 1 on 127.0.0.2 reads 0 to 0.4 of the data ({shares}, line 1)" in errors
    assert f"launch: warning: {shares}: nobody reads 10 % of the data\n" in errors


@pytest.mark.thorough
def test_a_launcher_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    job = Dummies(tmp_path, STUBBORN, "-n", 2, "-s", 1)
    job.wait_for_files(6)
    job.process.kill()
    assert job.ends(left_seconds=20)[0] == -signal.SIGKILL


def test_over_ssh_folder_environment_status_and_signals_arrive(tmp_path: Path) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    # It runs the command as the server of ssh does, by the user's shell.
    write_program(
        ssh,
        '#!/bin/sh\nwhile [ "${1#-o}" != "$1" ]; do echo "$1" >>"$0.options"; shift; done\n'
        'echo "$4" >>"$0.words"; [ "$1 $3" = "-p 127.0.0.1" ] && echo "$2" >>"$0.ports" && cd / '
        '&& exec env -u MXNET_KEPT PRESENCE="$PRESENCE" sh -c "$4"',
    )
    (tmp_path / "hosts").write_text("127.0.0.1:2222\n127.0.0.1:2223\n")
    names = ("MXNET_KEPT", "DMLC_NODE_HOST", "GROUPING_LOCAL_WORKER")
    # Before it says that it is ready, and may get a signal.
    worker = f"import os\nprint(os.getcwd(), *map(os.environ.get, {names}), flush=True)\n" + SAVE
    options = ("-n", 2, "-s", 1, "-H", tmp_path / "hosts", "--launcher", "ssh")
    path = f"{ssh.parent}:{os.environ['PATH']}"
    job = Dummies(tmp_path, worker, *options, PATH=path, MXNET_KEPT="it's $HOME")
    job.wait_for_files(6)
    job.process.send_signal(signal.SIGTERM)
    status, output, _ = job.ends()
    assert status == 143
    for number in (0, 1):
        assert f"worker {number}: {ROOT} it's $HOME 127.0.0.1 {number}\n" in output
        assert f"worker {number}: saved\n" in output
    # It asks for no password, and notices in 15 s that a connection is gone.
    options = {"-oBatchMode=yes", "-oServerAliveCountMax=3"}
    assert options < {*ssh.with_name("ssh.options").read_text().split()}
    # Both are asked; a server is on the first.
    assert sorted(ssh.with_name("ssh.ports").read_text().split()) == ["2222"] * 3 + ["2223"] * 2
    words = ssh.with_name("ssh.words").read_text()
    assert "parallel.launch.guard" in words
    assert not any(word in words for word in ("$HOME", "DMLC_ROLE=", "MXNET_KEPT="))


@contextmanager
def guarded(*command: str, sharers: int = 1, **variables: str):
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


def test_lines_are_signals_to_the_command() -> None:
    traps = "".join(f"trap 'echo {name}' {name}\n" for name in ("INT", "TERM"))
    with guarded("sh", "-c", traps + LOOP) as process:
        assert process.stdout.readline() == "ready\n"
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


def spec(role: str = WORKER, script: str = "", *, number: int = 0) -> ProcessSpec:
    command = ("sh", "-c", f"echo {BEGUN.decode()}; {script}")
    return ProcessSpec(role, number, "there", command, {"GROUPING_X": "3"})


def shells(worker: str, other: str, server: str, scheduler: str) -> list[ProcessSpec]:
    """A scheduler, a server and two workers; they read the lines that a guard would get."""
    roles = (SCHEDULER, 0), (SERVER, 0), (WORKER, 0), (WORKER, 1)
    return [
        spec(role, script, number=number)
        for (role, number), script in zip(roles, (scheduler, server, worker, other))
    ]


@pytest.mark.parametrize(("scripts", "tolerates", "status", "said"), [
    ((READS, "exit 3", READS, READS), False, 3, "worker 1 on there ended with status 3; end"),
    ((READS, "exit 255", READS, READS), False, 255, "status 255 (ssh: no connection, or one"),
    ((READS, READS, "exit 0", READS), True, 1, "server 0 on there ended with status 0; ending"),
    ((READS, READS, READS, "kill -9 $$"), True, 137, "scheduler on there ended with status 137 "
     "(SIGKILL); ending the job"),
    ((READS, "kill -HUP $$", READS, READS), False, 129, "status 129 (SIGHUP); ending the job"),
    (("sleep 0.5", "exit 7", READS, READS), True, 0, "status 7; the job goes on without it"),
    (("sleep 0.5; exit 8", "exit 7", READS, READS), True, 7, "status 8; the job goes on"),
])  # fmt: skip
def test_a_process_that_dies_ends_the_job_or_is_tolerated(capfd, scripts, tolerates, status, said):
    assert job.run(shells(*scripts), tolerates=tolerates) == status
    announced = capfd.readouterr().err.splitlines()
    assert len(announced) == (2 if "exit 8" in scripts[0] else 1)
    assert announced[-1].startswith("launch: ") and said in announced[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_workers_save(capfd, number: signal.Signals) -> None:
    """The others end after the workers."""
    saves = "read line; sleep 0.3; echo saves after $line"
    signals = f"sleep 0.2; kill -{number.name[3:]} $PPID; {saves}"
    ends = "read line; echo ends after $line"
    handlers = [signal.getsignal(each) for each in signal.valid_signals()]
    assert job.run(shells(signals, saves, ends, ends), tolerates=False) == 128 + number
    assert [signal.getsignal(each) for each in signal.valid_signals()] == handlers
    output, errors = capfd.readouterr()
    lines, sent = output.splitlines(), "INT" if number == signal.SIGINT else "TERM"
    assert sorted(lines[:2]) == [f"worker {k}: saves after {sent}" for k in (0, 1)]
    assert sorted(lines[2:]) == ["scheduler: ends after TERM", "server 0: ends after TERM"]
    assert errors == f"launch: {number.name}: asking the workers to stop\n"


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """Not that of timeout, which sends its signal to the launcher and to its group."""
    job = Dummies(tmp_path, STUBBORN, "-n", 1, "-s", 1)
    job.wait_for_files(4)
    start = time.monotonic()
    for pause in (0, 0.1, 1.5):
        time.sleep(pause)
        assert job.process.poll() is None
        job.process.send_signal(signal.SIGINT)
    assert job.ends(left_seconds=20)[0] == 130 and time.monotonic() - start < 12


def test_who_ignores_signals_is_killed(capfd, monkeypatch) -> None:
    for name in ("_CHECKPOINT_SECONDS", "_END_SECONDS", "_GIVE_UP_SECONDS"):
        monkeypatch.setattr(job, name, 0.3)
    reads = 'while read line; do echo $line; [ "$line" = KILL ] && exit 9; done'
    worker = spec(WORKER, f"(sleep 0.2; kill -INT $PPID) & {reads}")
    assert job.run([worker, spec(SERVER, "exec sleep 300")], tolerates=False) == 130
    output, errors = capfd.readouterr()
    assert output.splitlines() == [f"worker 0: {line}" for line in ("INT", "TERM", "KILL")]
    assert "launch: server 0 on there could not be ended; look there\n" in errors


def remote() -> ProcessSpec:
    return replace(spec(), is_remote=True)


def stub_ssh(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a script in place of ssh; processes that ignore signals are not waited for."""
    for name in ("_CHECKPOINT_SECONDS", "_END_SECONDS", "_GIVE_UP_SECONDS"):
        monkeypatch.setattr(job, name, 0.2)
    write_program(folder / "ssh", f"#!/bin/sh\n{script}\nexec sleep 300\n")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_connection_that_leads_to_no_guard_ends(tmp_path, monkeypatch, capfd) -> None:
    """As where a server accepts a connection and says nothing, after all hosts have reported."""
    stub_ssh(tmp_path, "", monkeypatch)
    monkeypatch.setattr(ssh, "ANSWER_SECONDS", 0.3)
    assert job.run([remote()], tolerates=False) == 128 + signal.SIGKILL
    said = "launch: host there: no connection by ssh (no answer in 0 s); it"
    assert said in capfd.readouterr().err


def test_few_log_in_to_a_host_at_the_same_time(tmp_path, monkeypatch) -> None:
    logins = tmp_path / "logins"
    script = f"echo in >>{logins}; sleep 0.2; echo out >>{logins}; echo {BEGUN.decode()}; exit 0"
    stub_ssh(tmp_path, script, monkeypatch)
    assert job.run([remote()] * 14, tolerates=False) == 0
    words = logins.read_text().split()
    waiting = [words[:end].count("in") - words[:end].count("out") for end in range(len(words))]
    assert words.count("out") == 14 and 1 < max(waiting) <= 8


def test_what_a_process_prints_does_not_command_the_terminal(capfd) -> None:
    printing = spec(WORKER, r"printf 'loss 0.5 é\n\033]0;x\007\342\200\256\377\n\n'")
    assert job.run([printing], tolerates=False) == 0
    assert capfd.readouterr().out.splitlines() == [
        "worker 0: loss 0.5 é", "worker 0: " + r"\x1b]0;x\x07\u202e\xff",
    ]  # fmt: skip
