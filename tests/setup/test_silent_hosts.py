"""Every launcher where ssh does not let it in: one line and status 2 in a limited time.

Nothing of a launcher is left afterwards, nor if it is asked to stop at that moment.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.ssh_servers import BANNER, CLOSES, DROPS, SILENT, WRONG_NAME, SshServer

ROOT = Path(__file__).resolve().parents[2]
HOST_TIMEOUT = 10
LONGEST = HOST_TIMEOUT + 60
ON_BOTH = ("-np", "2", "-H", "localhost:1,{name}:1", "true")
# Those of a network: on the loopback, only this machine's own hosts are taken.
INTERFACES = [
    name
    for name, addresses in psutil.net_if_addrs().items()
    if any(one.family == socket.AF_INET and one.address != "127.0.0.1" for one in addresses)
]
JOB = ("-n", "1", "-s", "1", "-H", "{folder}/one", "-i", *INTERFACES[:1], "--launcher", "ssh")
WORKER = ("--", "python", "classify.py", "--kv-store", "dist_async")
LAUNCHERS = {
    "run.sh": ("bash", "run.sh"),
    "run.sh --restarts": ("bash", "run.sh", "--restarts", "3"),
    "mpirun": ("mpirun", *ON_BOTH),
    "mpirun -hostfile": ("mpirun", "-np", "1", "-hostfile", "{folder}/one", "true"),
    "horovodrun": ("horovodrun", *ON_BOTH),
    "horovodrun --gloo": ("horovodrun", "--gloo", *ON_BOTH),
    "launch": ("python", "-m", "parallel.launch", *JOB, *WORKER),
    "launch --sync": ("python", "-m", "parallel.launch", *JOB, "--sync", *WORKER),
    "autogroup": ("python", "-m", "parallel.autogroup", *JOB, *WORKER),
    "check": ("python", "-m", "parallel.check", "-H", "localhost:1,{name}:1"),
}
# Every launcher, and every kind of server.
SERVERS = {
    "run.sh": SILENT, "run.sh --restarts": WRONG_NAME, "mpirun": BANNER, "mpirun -hostfile": DROPS,
    "horovodrun": SILENT, "horovodrun --gloo": CLOSES, "launch": SILENT, "launch --sync": CLOSES,
    "autogroup": DROPS, "check": SILENT,
}  # fmt: skip


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SshServer]:
    kind = request.param
    with SshServer(tmp_path / "ssh", kind) as started:
        (started.folder / "one").write_text(f"{kind}\n")
        yield started


def start(server: SshServer, launcher: str) -> subprocess.Popen:
    """Start a launcher of this checkout, whatever .venv/bin has links to."""
    if "--launcher" in LAUNCHERS[launcher] and not INTERFACES:
        pytest.skip("this machine has no network")
    path = (server.folder, ROOT / "setup-utils/launchers", Path(sys.prefix) / "bin")
    variables = {"HOST_TIMEOUT": str(HOST_TIMEOUT), "HOSTS": f"localhost:1,{server.name}:1"}
    variables["PATH"] = ":".join([*map(str, path), os.environ["PATH"]])
    words = [word.format(name=server.name, folder=server.folder) for word in LAUNCHERS[launcher]]
    return subprocess.Popen(
        words, cwd=ROOT, env={**os.environ, "VIRTUAL_ENV": sys.prefix, **variables}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def ends(process: subprocess.Popen) -> tuple[str, str]:
    """Return what it prints until it ends in time."""
    try:
        return process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"still there after {LONGEST} s: {process.communicate()}")


@pytest.mark.parametrize(("launcher", "server"), SERVERS.items(), indirect=["server"])
def test_a_host_that_does_not_let_in_is_one_line(launcher: str, server: SshServer) -> None:
    process = start(server, launcher)
    output, errors = ends(process)
    assert not server.left()
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
    _, errors = ends(process)
    assert time.monotonic() - began < 8
    assert process.returncode == 128 + number, errors
    assert len(errors.splitlines()) == launcher.startswith("run.sh"), errors
    assert not server.left()
