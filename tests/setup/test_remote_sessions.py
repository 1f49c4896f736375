"""The sessions in which launchers run commands on other hosts; ssh is a stub here."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.launch import ROOT, write_program

pytestmark = pytest.mark.thorough

FOLDER = ROOT / "setup-utils/launchers"
# Says when it is there; a child in the background has to end with it.
BEGUN = "remote-guard: begun"
COMMAND = "echo ready; sleep 300 & echo $! >child; wait"
SSH = """\
echo "$*" >call
if [[ -n $SAYS ]]; then echo "$SAYS" >&2; fi
read -r line && echo "read '$line'"
exec bash -c "$ENDS"
"""


def start(
    folder: Path, *words: object, ssh: str = SSH, **variables: str
) -> subprocess.Popen[str]:
    """Start a script in a folder, where ssh is one, too; its errors are part of its output."""
    path = f"{write_program(folder / 'ssh', ssh).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", *map(str, words)], cwd=folder, text=True, start_new_session=True,
        env={**os.environ, "PATH": path, "HOST_TIMEOUT": "40", **variables},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def guard(folder: Path, command: str) -> subprocess.Popen[str]:
    """Start a command as another host does."""
    return start(folder, FOLDER / "remote-guard", 2, "bash", "-c", command)


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


def test_a_command_that_does_not_obey_is_killed(tmp_path: Path) -> None:
    process = guard(tmp_path, "trap '' TERM; echo ready; sleep 300; sleep 300")
    assert process.stdout.readline() == "ready\n"
    process.communicate("\n", timeout=20)
    assert process.returncode == 128 + signal.SIGKILL


def test_without_a_first_line_nothing_is_ended(tmp_path: Path) -> None:
    """As where Slurm's srun starts the daemon: it has no input."""
    process = guard(tmp_path, "sleep 3; echo done; exit 7")
    assert process.communicate(timeout=30)[0] == "done\n"
    assert process.returncode == 7


@contextmanager
def shell(folder: Path, ends: str, *words: str, says: str = BEGUN) -> Iterator[subprocess.Popen]:
    """A session as mpirun starts it, which is a shell that waits here; ssh does as it is told."""
    script = f"bash '{FOLDER}/remote-shell' {' '.join(words)} host7 daemon -x; echo $?; "
    with start(folder, "-c", f"{script}sleep 300 & wait", ENDS=ends, SAYS=says) as process:
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


@pytest.mark.parametrize(
    ("ends", "says", "said"),
    [
        ("exit 137", BEGUN, "error: on host7 a signal has ended .*status 137"),
        ("exit 3", BEGUN, "3$"),
        (
            "exit 255",
            "Permission denied (publickey).",
            r"error: host host7: no connection by ssh \(Permission denied \(publickey\).\); it has "
            "to work without a question: ssh -oBatchMode=yes host7 true; the job ends$",
        ),
        # Errors of a command come as they are.
        (f"printf 'motd\\n{BEGUN}\\n 1%%\\r 2%%\\n\\n' >&2; exit 3", "", "motd\n 1%\n 2%\n\n"),
    ],
)
def test_a_command_that_fails(tmp_path: Path, ends: str, says: str, said: str) -> None:
    with shell(tmp_path, ends, says=says) as process:
        lines = [process.stdout.readline() for _ in range(max(1, said.count("\n")))]
        assert re.match(said, "".join(lines))


def test_a_session_that_the_launcher_ends_says_nothing(tmp_path: Path) -> None:
    with shell(tmp_path, "sleep 300") as process:
        session = subprocess.check_output(["pgrep", "-P", str(process.pid)], text=True)
        os.kill(int(session), signal.SIGTERM)
        assert process.stdout.readline() == "143\n"


@pytest.mark.parametrize("end", ["time", "launcher", "signal"])
def test_a_session_that_does_not_begin_ends(tmp_path: Path, end: str) -> None:
    """In HOST_TIMEOUT, with the launcher, and by a signal: ssh, and this side's processes."""
    ssh = "echo $$ >session\nexec sleep 300\n"
    script = f"bash '{FOLDER}/remote-shell' host7 daemon & echo $!; wait $!; echo $?"
    with start(tmp_path, "-c", script, ssh=ssh, HOST_TIMEOUT="4") as process:
        remote_shell = int(process.stdout.readline())
        while not (tmp_path / "session").exists() or not (tmp_path / "session").read_text():
            time.sleep(0.05)
        session = int((tmp_path / "session").read_text())
        if end == "launcher":
            process.kill()
        elif end == "signal":
            os.kill(remote_shell, signal.SIGTERM)
        said = process.stdout.read().splitlines()
    assert not processes.left([session, remote_shell])
    line = "error: host host7: no connection by ssh (no answer in 4 s); it has to work without a "
    line += "question: ssh -oBatchMode=yes host7 true; the job ends"
    assert said == {"time": [line, "255"], "launcher": [], "signal": ["143"]}[end]


def test_variables_are_on_the_input_and_in_no_argument(tmp_path: Path) -> None:
    ssh = "printf '%s\\n' \"$@\" >call\nhead -zn 3 | tr '\\0' '|' >input\nexit 3\n"
    words = (FOLDER / "remote-shell", "--send=SECRET,EMPTY", "-p", "77", "host7", "daemon")
    with start(tmp_path, *words, ssh=ssh, SECRET="a b\nc=*", EMPTY="") as process:
        assert process.communicate(timeout=30)[0] == "" and process.returncode == 3
    # The empty one ends them.
    assert (tmp_path / "input").read_text() == "SECRET=a b\nc=*|EMPTY=||"
    call = (tmp_path / "call").read_text()
    assert call.startswith("-x\n-p\n77\n") and call.endswith("\nhost7\ndaemon\n")
    assert "a b" not in call


@pytest.mark.parametrize(
    "words",
    [("-Fx.conf", "daemon -mca x"), ("-x", "-oProxyCommand=touch y", "/usr/bin/daemon"),
     ("-F", "daemon"), ("-p", "77", "--", "-Fx.conf", "daemon"), ("-x", "", "daemon"),
     ("a host", "daemon")],
)  # fmt: skip
def test_a_host_is_no_option(tmp_path: Path, words: tuple[str, ...]) -> None:
    """As in a file of hosts that Open MPI alone has read."""
    with start(tmp_path, FOLDER / "remote-shell", *words) as process:
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 2 and said.startswith("error: no host after 'ssh ")
    assert len(said.splitlines()) == 1 and not (tmp_path / "call").exists()
