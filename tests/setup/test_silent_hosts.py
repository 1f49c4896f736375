"""Launchers on hosts that a stub of ssh reaches or does not let in, and tasks of Slurm.

A launcher that is not let in says one line and ends in a limited time; nothing of it is left, also
where it is stopped. Where it is, the stub runs the command here with the variables of a fresh
login, and records words.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import processes
from tests.support.job import Started
from tests.support.launch import ROOT, finish, write_program

pytestmark = pytest.mark.thorough

HOST_TIMEOUT = 10
LONGEST = HOST_TIMEOUT + 60
FOLDER = ROOT / "setup-utils/launchers"
# A server that says nothing, or nothing after its banner; one that refuses.
SSH = {"silent": "exec sleep 300\n", "closed": "echo 'Connection closed' >&2\nexit 255\n"}
ON_BOTH = ("-np", "2", "-H", "localhost:1,ip2:1", "true")
# Those of a network: on the loopback, only this machine's own hosts are taken.
INTERFACES = [
    name
    for name, addresses in psutil.net_if_addrs().items()
    if any(one.family == socket.AF_INET and one.address != "127.0.0.1" for one in addresses)
]
JOB = ("-n", "1", "-s", "1", "-H", "{folder}/one", "-i", *INTERFACES[:1], "--launcher", "ssh")
WORKER = ("--", "python", "classify.py", "--kv-store", "dist_async")
LAUNCHERS = {
    "run.sh": ("silent", "bash", "run.sh"),
    "run.sh --restarts": ("closed", "bash", "run.sh", "--restarts", "3"),
    "mpirun": ("silent", "mpirun", *ON_BOTH),
    "mpirun -hostfile": ("closed", "mpirun", "-np", "1", "-hostfile", "{folder}/one", "true"),
    "horovodrun": ("silent", "horovodrun", *ON_BOTH),
    "horovodrun --gloo": ("closed", "horovodrun", "--gloo", *ON_BOTH),
    "launch": ("silent", "python", "-m", "parallel.launch", *JOB, *WORKER),
    "launch --sync": ("closed", "python", "-m", "parallel.launch", *JOB, "--sync", *WORKER),
    "autogroup": ("silent", "python", "-m", "parallel.autogroup", *JOB, *WORKER),
    "check": ("silent", "python", "-m", "parallel.check", "-H", "localhost:1,ip2:1"),
}


def start(folder: Path, launcher: str) -> Started:
    """Start a launcher of this checkout, whatever .venv/bin has links to."""
    kind, *words = LAUNCHERS[launcher]
    if "--launcher" in words and not INTERFACES:
        pytest.skip("this machine has no network")
    folder.mkdir(exist_ok=True)
    (folder / "one").write_text("ip2\n")
    write_program(folder / "ssh", SSH[kind])
    path = (folder, FOLDER, Path(sys.prefix) / "bin", os.environ["PATH"])
    variables = {"PATH": ":".join(map(str, path)), "VIRTUAL_ENV": sys.prefix}
    variables |= {"HOST_TIMEOUT": str(HOST_TIMEOUT), "HOSTS": "localhost:1,ip2:1"}
    apart = ("bash", "-c", 'exec "$@" 2>"$0"', folder / "errors")
    words = [word.format(folder=folder) for word in words]
    return Started(folder, *apart, *words, **variables)


def ends(job: Started) -> tuple[str, str]:
    """Return output and errors of a launcher when it ends in time; nothing is left then."""
    job.wait(LONGEST)
    assert not processes.left([one.pid for one in job.running()], 5)
    return job.said(), (job.folder / "errors").read_text()


def test_a_host_that_does_not_let_in_is_one_line(tmp_path: Path) -> None:
    with ExitStack() as stack:
        jobs = {
            launcher: stack.enter_context(start(tmp_path / f"{number}", launcher))
            for number, launcher in enumerate(LAUNCHERS)
        }
        for launcher, job in jobs.items():
            output, errors = ends(job)
            assert job.process.returncode == 2, (launcher, errors)
            if launcher == "check":
                assert not errors and "\nwrong  ip2: " in output
            else:
                assert not output
                assert errors.startswith("error: host ip2: no connection by ssh ("), launcher
                assert errors.count("\n") == 1


@pytest.mark.parametrize("launcher", ["run.sh", "mpirun", "horovodrun", "launch", "check"])
def test_a_launcher_that_is_asked_to_stop_while_it_connects(launcher: str, tmp_path: Path) -> None:
    number = signal.SIGINT if launcher in ("run.sh", "horovodrun") else signal.SIGTERM
    with start(tmp_path, launcher) as job:
        job.wait_until(lambda: any(one.words == ["sleep", "300"] for one in job.running()))
        began = time.monotonic()
        job.process.send_signal(number)
        _, errors = ends(job)
        assert time.monotonic() - began < 8
    assert job.process.returncode == 128 + number, errors
    assert len(errors.splitlines()) == launcher.startswith("run.sh"), errors


# Says when it is there; a child in the background has to end with it.
BEGUN = "remote-guard: begun"
COMMAND = "echo ready; sleep 300 & echo $! >child; wait"
SESSION = """\
echo "$*" >call
if [[ -n $SAYS ]]; then echo "$SAYS" >&2; fi
read -r line && echo "read '$line'"
exec bash -c "$ENDS"
"""


def start_script(folder: Path, *words: object, ssh: str = SESSION, **variables: str):
    """Start a script in a folder, where ssh is one, too; its errors are part of its output."""
    path = f"{write_program(folder / 'ssh', ssh).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", *map(str, words)], cwd=folder, text=True, start_new_session=True,
        env={**os.environ, "PATH": path, "HOST_TIMEOUT": "40", **variables},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def guard(folder: Path, command: str):
    return start_script(folder, FOLDER / "remote-guard", 2, "bash", "-c", command)


@pytest.mark.parametrize("end", ["the input ends", "no line comes"])
def test_a_command_ends_with_its_session(tmp_path: Path, end: str) -> None:
    with guard(tmp_path, COMMAND) as process:
        assert process.stdout.readline() == "ready\n"
        for number in range(6):
            process.stdin.write("\n")
            process.stdin.flush()
            if number == 0:
                assert process.stdout.readline() == f"{BEGUN}\n"
            if number < 5:
                time.sleep(0.6)
        assert process.poll() is None, "lines keep it"
        began = time.monotonic()
        if end == "the input ends":
            process.stdin.close()
        assert process.wait(20) == 128 + signal.SIGTERM
        seconds = time.monotonic() - began
        assert seconds < 1.5 if end == "the input ends" else 1.5 < seconds < 10
        assert not processes.left([int((tmp_path / "child").read_text())])


def test_a_guard_kills_what_does_not_obey_and_waits_without_a_first_line(tmp_path: Path) -> None:
    process = guard(tmp_path, "trap '' TERM; echo ready; sleep 300; sleep 300")
    assert process.stdout.readline() == "ready\n"
    process.communicate("\n", timeout=20)
    assert process.returncode == 128 + signal.SIGKILL
    # A daemon that Slurm's srun starts has no input. It may be stopped for a while.
    paused = "(sleep 1; kill -CONT $$) & kill -STOP $$; sleep 2; echo done; exit 7"
    process = guard(tmp_path, paused)
    assert process.communicate(timeout=30)[0] == "done\n"
    assert process.returncode == 7


@contextmanager
def shell(folder: Path, ends: str, *words: str, says: str = BEGUN) -> Iterator[subprocess.Popen]:
    """Start a session as mpirun does, in a shell that waits."""
    script = f"bash '{FOLDER}/remote-shell' {' '.join(words)} host7 daemon -x; echo $?; "
    with start_script(folder, "-c", f"{script}sleep 300 & wait", ENDS=ends, SAYS=says) as process:
        try:
            assert process.stdout.readline() == "read ''\n"
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_lost_connection_names_the_host_and_ends_a_launcher_that_waits(tmp_path: Path) -> None:
    options = ("-p", "77", "-o", "Compression=no")
    # The launcher has thirty seconds, which are tenths here.
    write_program(tmp_path / "sleep", "[ $1 = 300 ] || set 0.1\nexec /bin/sleep $1\n")
    with shell(tmp_path, "exit 255", *options) as process:
        assert process.stdout.readline().startswith("error: the connection to host7 is lost (ssh)")
        assert process.stdout.readline() == "255\n"
        assert process.wait(60) == -signal.SIGKILL
    alive = "-o ServerAliveInterval=10 -o ServerAliveCountMax=4 -o ControlMaster=no"
    call = (tmp_path / "call").read_text()
    assert call == f"-x {' '.join(options)} -o BatchMode=yes {alive} host7 daemon -x\n"


REFUSED = "error: host host7: no connection by ssh "
WORKS = "; it has to work without a question: ssh -oBatchMode=yes host7 true; the job ends"


def test_a_command_that_fails(tmp_path: Path) -> None:
    for ends, says, said in (
        ("exit 137", BEGUN, "error: on host7 a signal has ended .*status 137"),
        ("exit 3", BEGUN, "3$"),
        ("exit 255", "Permission denied (publickey).",
         rf"{REFUSED}\(Permission denied \(publickey\).\){WORKS}$"),
        (f"printf 'motd\\n{BEGUN}\\n 1%%\\r 2%%\\n\\n' >&2; exit 3", "", "motd\n 1%\n 2%\n\n"),
    ):  # fmt: skip
        with shell(tmp_path, ends, says=says) as process:
            lines = [process.stdout.readline() for _ in range(max(1, said.count("\n")))]
            assert re.match(said, "".join(lines)), said


def test_a_session_that_does_not_begin_ends_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    ssh = "echo $$ >session\nexec sleep 300\n"
    script = f"bash '{FOLDER}/remote-shell' host7 daemon & echo $!; wait"
    with start_script(tmp_path, "-c", script, ssh=ssh) as process:
        remote_shell = int(process.stdout.readline())
        while not (tmp_path / "session").exists() or not (tmp_path / "session").read_text():
            time.sleep(0.05)
        session = int((tmp_path / "session").read_text())
        process.kill()
        assert process.stdout.read() == ""
    assert not processes.left([session, remote_shell])


def test_a_host_is_no_option(tmp_path: Path) -> None:
    for words in (
        "-x,-oProxyCommand=touch y,/usr/bin/daemon", "-p,77,--,-Fx.conf,daemon", "-x,,daemon",
    ):  # fmt: skip
        with start_script(tmp_path, FOLDER / "remote-shell", *words.split(",")) as process:
            said, _ = process.communicate(timeout=30)
        assert process.returncode == 2 and said.startswith("error: no host after 'ssh "), words
        assert len(said.splitlines()) == 1 and not (tmp_path / "call").exists()


# For documentation, and so of no host.
HOSTS = "198.51.100.1:1,203.0.113.1:1"
LOGIN = """\
printf '%s\\n' "$@" >>"$RECORD/words"
while getopts xp:i:o: _; do :; done
command=${*:OPTIND+1}
exec env -i HOME="$HOME" PATH=/usr/local/bin:/usr/bin:/bin bash -c "$command"
"""
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "Hx7c0a1f9e", "WANDB_API_KEY": "Wq2  *=$d", "MXNET_KEPT": "Mz9e4f6071"
}  # fmt: skip
SHOW = 'sleep 1; echo "rank $HOROVOD_RANK$OMPI_COMM_WORLD_RANK '
SHOW += '$MXNET_KEPT $WANDB_API_KEY ${AWS_SECRET_ACCESS_KEY:-none}"'
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{80,}={0,2}")


def objects(text: bytes) -> list[bytes]:
    words = (word.rstrip(b"=") for word in _BASE64.findall(text))
    decoded = (base64.b64decode(word[: len(word) - (len(word) % 4 == 1)] + b"==") for word in words)
    return [one for one in decoded if b"horovod" in one]


@contextmanager
def watched() -> Iterator[set[bytes]]:
    """Yield the arguments of all other processes, as every user sees them."""
    seen: set[bytes] = set()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.005):
            for name in {*filter(str.isdecimal, os.listdir("/proc"))} - {str(os.getpid())}:
                with suppress(OSError):
                    seen.add(Path("/proc", name, "cmdline").read_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


@pytest.mark.launcher
@pytest.mark.parametrize("command", ["horovodrun --gloo", "horovodrun", "mpirun"])
def test_ranks_get_what_no_argument_has(tmp_path: Path, command: str) -> None:
    write_program(tmp_path / "ssh", LOGIN)
    # The home has what Horovod remembers of hosts.
    variables: dict[str, Any] = {"HOME": str(tmp_path), "RECORD": str(tmp_path), **SECRETS}
    variables["PATH"] = f"{tmp_path}:{FOLDER}:{sys.prefix}/bin:{os.environ['PATH']}"
    variables |= {"SEND_VARIABLES": "WANDB_API_KEY", "HOROVOD_START_TIMEOUT": "100"}
    variables["HOST_TIMEOUT"] = "60"
    words = (*command.split(), "-np", "2", "-H", HOSTS, "bash", "-c", SHOW)
    with watched() as seen:
        said = finish(*words, seconds=120, **variables)
    for rank in (0, 1):
        assert f"rank {rank} Mz9e4f6071 Wq2  *=$d none" in said.stdout
    assert any(b"remote-guard" in one for one in seen)
    for text in (*seen, (tmp_path / "words").read_bytes()):
        assert not objects(text) and not any(one.encode() in text for one in SECRETS.values())


# In place of srun with PMIx: tasks of Open MPI's own PMIx server, without what it tells its ranks,
# with what Slurm tells its tasks. Open MPI takes them for those of srun by job, step and nodes.
SRUN = """\
rank=$OMPI_COMM_WORLD_RANK
for name in $(compgen -e | grep -E '^(OMPI|ORTE|OPAL_MCA|HOROVOD)_'); do unset "$name"; done
export SLURM_JOB_ID=7 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_NODEID=0
export SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=2
export SLURM_NODELIST=$(hostname) SLURM_STEP_ID=0 SLURM_JOBID=7
exec bash "$@"
"""


@pytest.mark.launcher
def test_tasks_with_pmix_train_together(tmp_path: Path) -> None:
    words = "--debug --rec . --num-classes 50 --num-images 50 --network tiny --batch-size 4"
    options = [*words.split(), "--max-update", 2, "--models-root"]
    mpirun, srun = Path(sys.executable).with_name("mpirun"), write_program(tmp_path / "srun", SRUN)
    finish(mpirun, "-np", 2, srun, "setup-utils/slurm.sh", *options, tmp_path / "models")
    logs = sorted(path.name for path in (tmp_path / "models/logs").iterdir())
    assert logs == ["rank-0000.log", "rank-0001.log"]
    assert (tmp_path / "models/checkpoints/update-00000002/rank-0001.bin").exists()
