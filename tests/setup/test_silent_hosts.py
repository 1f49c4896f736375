"""Every launcher where ssh does not let it in: one line and status 2 in a limited time.

Nothing of a launcher is left afterwards, nor if it is asked to stop at that moment. The servers are
on this machine, each by another name: a program ``ssh`` in a folder for ``PATH`` is the real one
with a configuration in which the names stand for them.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
HOST_TIMEOUT = 10
LONGEST = HOST_TIMEOUT + 60
# Says nothing, closes at once, says nothing after its banner, and drops packets.
SILENT, CLOSES, BANNER, DROPS = "silent", "closes", "banner", "drops"
WRONG_NAME = "no-such-name.invalid"
CLIENT = """\
Host {name}
  HostName {address}
  Port {port}
  HostKeyAlias {name}
Host *
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
"""
ON_BOTH = ("-np", "2", "-H", "localhost:1,{name}:1", "true")
# Those of a network: on the loopback, only this machine's own hosts are taken.
INTERFACES = [
    name
    for name, addresses in psutil.net_if_addrs().items()
    if any(one.family == socket.AF_INET and one.address != "127.0.0.1" for one in addresses)
]
JOB = ("-n", "1", "-s", "1", "-H", "{folder}/one", "-i", *INTERFACES[:1], "--launcher", "ssh")
WORKER = ("--", "python", "classify.py", "--kv-store", "dist_async")
# Every launcher, and every kind of server.
LAUNCHERS = {
    "run.sh": (SILENT, "bash", "run.sh"),
    "run.sh --restarts": (WRONG_NAME, "bash", "run.sh", "--restarts", "3"),
    "mpirun": (BANNER, "mpirun", *ON_BOTH),
    "mpirun -hostfile": (DROPS, "mpirun", "-np", "1", "-hostfile", "{folder}/one", "true"),
    "horovodrun": (SILENT, "horovodrun", *ON_BOTH),
    "horovodrun --gloo": (CLOSES, "horovodrun", "--gloo", *ON_BOTH),
    "launch": (SILENT, "python", "-m", "parallel.launch", *JOB, *WORKER),
    "launch --sync": (CLOSES, "python", "-m", "parallel.launch", *JOB, "--sync", *WORKER),
    "autogroup": (DROPS, "python", "-m", "parallel.autogroup", *JOB, *WORKER),
    "check": (SILENT, "python", "-m", "parallel.check", "-H", "localhost:1,{name}:1"),
}


class SshServer:
    """A server of a kind, which is also the name by which ssh reaches it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.name = folder, kind
        self.sockets = [socket.socket()]
        self.sockets[0].bind(("127.0.0.1", 0))
        self.sockets[0].listen(0 if kind == DROPS else 64)
        place: tuple[str, int] = self.sockets[0].getsockname()
        if kind == DROPS:
            # With its queue full, the system drops the packets of further connections.
            for _ in range(2):
                self.sockets.append(socket.socket())
                self.sockets[-1].setblocking(False)
                self.sockets[-1].connect_ex(place)
            time.sleep(0.2)
        elif kind != WRONG_NAME:
            threading.Thread(target=self._accept, daemon=True).start()
        address = kind if kind == WRONG_NAME else place[0]
        folder.mkdir()
        config, program = folder / "config", folder / "ssh"
        text = CLIENT.format(name=kind, address=address, port=place[1], folder=folder)
        config.write_text(text)
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F "{config}" "$@"\n')
        program.chmod(0o755)
        (folder / "one").write_text(f"{kind}\n")

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection = self.sockets[0].accept()[0]
                if self.name == CLOSES:
                    connection.close()
                    continue
                if self.name == BANNER:
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                self.sockets.append(connection)

    def left(self) -> list[str]:
        """Return the processes of launchers and clients that still use this server's folder."""
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            words = " ".join(process.info["cmdline"] or ())
            path = (process.info["environ"] or {}).get("PATH", "")
            if str(self.folder) in words or str(self.folder) in path.split(":"):
                found.append(words)
        return found


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SshServer]:
    started = SshServer(tmp_path / "ssh", request.param)
    yield started
    for one in started.sockets:
        one.close()


def start(server: SshServer, launcher: str) -> subprocess.Popen:
    """Start a launcher of this checkout, whatever .venv/bin has links to."""
    if "--launcher" in LAUNCHERS[launcher] and not INTERFACES:
        pytest.skip("this machine has no network")
    path = (server.folder, ROOT / "setup-utils/launchers", Path(sys.prefix) / "bin")
    variables = {"HOST_TIMEOUT": str(HOST_TIMEOUT), "HOSTS": f"localhost:1,{server.name}:1"}
    variables["PATH"] = ":".join([*map(str, path), os.environ["PATH"]])
    names = {"name": server.name, "folder": server.folder}
    return subprocess.Popen(
        [word.format(**names) for word in LAUNCHERS[launcher][1:]], cwd=ROOT,
        env={**os.environ, "VIRTUAL_ENV": sys.prefix, **variables}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def ends(process: subprocess.Popen, server: SshServer) -> tuple[str, str]:
    """Return what it prints until it ends in time; nothing is left then."""
    try:
        said: tuple[str, str] = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"still there after {LONGEST} s: {process.communicate()}")
    assert not server.left()
    return said


@pytest.mark.parametrize(
    ("launcher", "server"),
    [(name, words[0]) for name, words in LAUNCHERS.items()],
    indirect=["server"],
)
def test_a_host_that_does_not_let_in_is_one_line(launcher: str, server: SshServer) -> None:
    process = start(server, launcher)
    output, errors = ends(process, server)
    assert process.returncode == 2, errors
    if launcher == "check":
        assert not errors and f"\nwrong  {server.name}: " in output
        return
    assert not output
    assert errors.startswith(f"error: host {server.name}: no connection by ssh (")
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("launcher", "number"), zip(LAUNCHERS, itertools.cycle([signal.SIGINT, signal.SIGTERM]))
)
@pytest.mark.parametrize("server", [BANNER], indirect=True)
def test_a_launcher_that_is_asked_to_stop_while_it_connects(
    launcher: str, server: SshServer, number: signal.Signals
) -> None:
    process = start(server, launcher)
    end = time.monotonic() + LONGEST
    while not any("-oBatchMode" in words for words in server.left()):
        assert process.poll() is None and time.monotonic() < end, "no ssh"
        time.sleep(0.05)
    began = time.monotonic()
    process.send_signal(number)
    _, errors = ends(process, server)
    assert time.monotonic() - began < 8
    assert process.returncode == 128 + number, errors
    assert len(errors.splitlines()) == launcher.startswith("run.sh"), errors
