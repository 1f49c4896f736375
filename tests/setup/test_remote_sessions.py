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

FOLDER = Path(__file__).resolve().parents[2] / "setup-utils/launchers"
# Says when it is there; a child in the background has to end with it.
BEGUN = "remote-guard: begun"
COMMAND = "echo ready; sleep 300 & echo $! >child; wait"
SSH = """\
#!/usr/bin/env bash
echo "$*" >call
if [[ -n $SAYS ]]; then echo "$SAYS" >&2; fi
read -r line && echo "read '$line'"
exec bash -c "$ENDS"
"""


def guard(folder: Path, seconds: object, *command: str) -> subprocess.Popen:
    """Start a command as another host does."""
    return subprocess.Popen(
        ["bash", FOLDER / "remote-guard", str(seconds), *command], cwd=folder, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.parametrize("end", ["the input ends", "no line comes"])
def test_a_command_ends_with_its_session(tmp_path: Path, end: str) -> None:
    process = guard(tmp_path, 2, "bash", "-c", COMMAND)
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == f"{BEGUN}\n"
    for _ in range(4):
        time.sleep(0.7)
        process.stdin.write("\n")
        process.stdin.flush()
    assert process.poll() is None, "lines keep it"
    began = time.monotonic()
    if end == "the input ends":
        process.stdin.close()
    assert process.wait(20) == 128 + signal.SIGTERM
    seconds = time.monotonic() - began
    assert seconds < 1.5 if end == "the input ends" else 1.5 < seconds < 10
    assert not processes.left([int((tmp_path / "child").read_text())])
    process.stdin.close()
    process.stdout.close()


def test_a_command_that_does_not_obey_is_killed(tmp_path: Path) -> None:
    process = guard(tmp_path, 2, "bash", "-c", "trap '' TERM; echo ready; sleep 300; sleep 300")
    assert process.stdout.readline() == "ready\n"
    process.communicate("\n", timeout=20)
    assert process.returncode == 128 + signal.SIGKILL


def test_without_a_first_line_nothing_is_ended(tmp_path: Path) -> None:
    """As where Slurm's srun starts the daemon: it has no input."""
    said = subprocess.run(
        ["bash", FOLDER / "remote-guard", "2", "bash", "-c", "sleep 3; echo done; exit 7"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stdout, said.stderr) == (7, "done\n", "")


@contextmanager
def shell(folder: Path, ends: str, *words: str, says: str = BEGUN) -> Iterator[subprocess.Popen]:
    """A session as mpirun starts it, which is a shell that waits here; ssh does as it is told."""
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", "ENDS": ends, "HOST_TIMEOUT": "40"}
    variables["SAYS"] = says
    script = f"bash '{FOLDER}/remote-shell' {' '.join(words)}; echo $?; sleep 300 & wait"
    with subprocess.Popen(
        ["bash", "-c", script], cwd=folder, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        env={**os.environ, **variables},
    ) as process:  # fmt: skip
        try:
            assert process.stdout.readline() == "read ''\n"
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_lost_connection_names_the_host_and_ends_a_launcher_that_waits(tmp_path: Path) -> None:
    options = ("-p", "77", "-o", "Compression=no")
    with shell(tmp_path, "exit 255", *options, "host7", "daemon", "-x") as process:
        assert process.stdout.readline().startswith("error: the connection to host7 is lost (ssh)")
        assert process.stdout.readline() == "255\n"
        assert process.wait(60) == -signal.SIGKILL
    alive = "-o ServerAliveInterval=10 -o ServerAliveCountMax=4 -o ControlMaster=no"
    call = (tmp_path / "call").read_text()
    assert call == f"-x {' '.join(options)} -o BatchMode=yes {alive} host7 daemon -x\n"


@pytest.mark.parametrize(
    ("ends", "says", "line"),
    [
        ("exit 137", BEGUN, "error: on host7 a signal has ended .*status 137"),
        ("exit 3", BEGUN, "3$"),
        (
            "exit 255",
            "Permission denied (publickey).",
            r"error: host host7: no connection by ssh \(Permission denied \(publickey\).\); it has "
            "to work without a question: ssh -oBatchMode=yes host7 true; the job ends$",
        ),
    ],
)
def test_a_command_that_fails(tmp_path: Path, ends: str, says: str, line: str) -> None:
    with shell(tmp_path, ends, "host7", "daemon", says=says) as process:
        assert re.match(line, process.stdout.readline())


def test_a_session_that_the_launcher_ends_says_nothing(tmp_path: Path) -> None:
    with shell(tmp_path, "sleep 300", "host7", "daemon") as process:
        session = subprocess.check_output(["pgrep", "-P", str(process.pid)], text=True)
        os.kill(int(session), signal.SIGTERM)
        assert process.stdout.readline() == "143\n"


def test_errors_of_a_command_come_as_they_are(tmp_path: Path) -> None:
    ends = f"printf 'motd\\n{BEGUN}\\n 1%%\\r 2%%\\n\\nend' >&2; exit 3"
    with shell(tmp_path, ends, "host7", "daemon", says="") as process:
        said = "motd\n 1%\n 2%\n\nend"
        assert process.stdout.read(len(said)) == said


@pytest.mark.parametrize("end", ["time", "launcher", "signal"])
def test_a_session_that_does_not_begin_ends(tmp_path: Path, end: str) -> None:
    """In HOST_TIMEOUT, with the launcher, and by a signal: ssh, and this side's processes."""
    (tmp_path / "ssh").write_text("#!/usr/bin/env bash\necho $$ >session\nexec sleep 300\n")
    (tmp_path / "ssh").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOST_TIMEOUT": "4"}
    script = f"bash '{FOLDER}/remote-shell' host7 daemon & echo $!; wait $!; echo $?"
    process = subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **variables},
    )  # fmt: skip
    remote_shell = int(process.stdout.readline())
    while not (tmp_path / "session").exists() or not (tmp_path / "session").read_text():
        time.sleep(0.05)
    session = int((tmp_path / "session").read_text())
    if end == "launcher":
        process.kill()
    elif end == "signal":
        os.kill(remote_shell, signal.SIGTERM)
    said = process.stdout.read().splitlines()
    process.wait()
    process.stdout.close()
    assert not processes.left([session, remote_shell])
    line = "error: host host7: no connection by ssh (no answer in 4 s); it has to work without a "
    line += "question: ssh -oBatchMode=yes host7 true; the job ends"
    assert said == {"time": [line, "255"], "launcher": [], "signal": ["143"]}[end]


SEES = """\
#!/usr/bin/env bash
printf '%s\\n' "$@" >call
head -zn 3 | tr '\\0' '|' >input
exit 3
"""


def test_variables_are_on_the_input_and_in_no_argument(tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text(SEES)
    (tmp_path / "ssh").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOST_TIMEOUT": "40"}
    said = subprocess.run(
        ["bash", FOLDER / "remote-shell", "--send=SECRET,EMPTY", "-p", "77", "host7", "daemon"],
        cwd=tmp_path, env={**os.environ, **variables, "SECRET": "a b\nc=*", "EMPTY": ""},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stdout) == (3, "")
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
    (tmp_path / "ssh").write_text("#!/usr/bin/env bash\ntouch called\n")
    (tmp_path / "ssh").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOST_TIMEOUT": "40"}
    said = subprocess.run(
        ["bash", FOLDER / "remote-shell", *words], cwd=tmp_path, env={**os.environ, **variables},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith("error: no host after 'ssh ")
    assert len(said.stderr.splitlines()) == 1 and not (tmp_path / "called").exists()
