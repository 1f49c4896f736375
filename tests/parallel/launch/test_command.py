"""The launcher, with small scripts in place of training and of MXNet's servers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime import processors
from tests.support import processes
from tests.support.launch import ROOT, clean_environment

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
    worker = program + "\nprint('look', file=sys.stderr); sys.stdout.write('no end of line')"
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
    serve, more = program + "\ntime.sleep(300)", ("--kv-store=dist_gsync", "--data-allocator", "1")
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
    assert "which take them in turn: 1 on localhost, 2 on 127.0.0.2\n" in errors
    shares = tmp_path / "data-sharding"
    assert f"launch: worker 1 on 127.0.0.2 reads 0 to 0.4 of the data ({shares}, line 1)" in errors
    assert f"launch: warning: {shares}: nobody reads 10 % of the data: 0.8 to 0.9\n" in errors
    assert "as the share of worker 0 has images for: 30 % of the data, the rest of" in errors


def test_a_guard_that_is_killed_ends_the_job(tmp_path: Path) -> None:
    worker = f"{PRESENT}worker == 1 and os.kill(os.getppid(), 9)\ntime.sleep(300)"
    status, _, errors = Dummies(tmp_path, worker, "-n", 2, "-s", 1).ends()
    said = "launch: worker 1 on 127.0.0.1 ended with status 137 (SIGKILL); ending the job\n"
    assert status == 137 and errors == said


@pytest.mark.thorough
def test_a_launcher_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    job = Dummies(tmp_path, STUBBORN, "-n", 2, "-s", 1)
    job.wait_for_files(6)
    job.process.kill()
    assert job.ends(left_seconds=20)[0] == -signal.SIGKILL


def test_a_closed_output_ends_the_job(tmp_path: Path) -> None:
    worker = STAY.replace("time.sleep", "print('x', flush=True)\ntime.sleep")
    job = Dummies(tmp_path, worker, "-n", 1, "-s", 1)
    job.process.stdout.close()
    job.process.stdout = None  # nothing for communicate() to read
    assert job.ends()[0] == 128 + signal.SIGPIPE


def test_over_ssh_folder_environment_status_and_signals_arrive(tmp_path: Path) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    # It runs the command as the server of ssh does, by the user's shell.
    ssh.write_text(
        '#!/bin/sh\nwhile [ "${1#-o}" != "$1" ]; do echo "$1" >>"$0.options"; shift; done\n'
        'echo "$4" >>"$0.words"; [ "$1 $3" = "-p 127.0.0.1" ] && echo "$2" >>"$0.ports" && cd / '
        '&& exec env -u MXNET_KEPT PRESENCE="$PRESENCE" sh -c "$4"'
    )
    ssh.chmod(0o755)
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
    assert "-oBatchMode=yes" in ssh.with_name("ssh.options").read_text()
    # Both are asked; a server is on the first.
    assert sorted(ssh.with_name("ssh.ports").read_text().split()) == ["2222"] * 3 + ["2223"] * 2
    words = ssh.with_name("ssh.words").read_text()
    assert "parallel.launch.guard" in words
    assert not any(word in words for word in ("$HOME", "DMLC_ROLE=", "MXNET_KEPT="))
