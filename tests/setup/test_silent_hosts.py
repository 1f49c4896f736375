"""Every launcher where ssh does not let it in: one line and status 2 in a limited time.

Nothing of a launcher is left afterwards, nor if it is asked to stop at that moment.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.launch import ROOT, write_program

pytestmark = pytest.mark.thorough

HOST_TIMEOUT = 10
LONGEST = HOST_TIMEOUT + 60
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


def left(folder: Path) -> list[str]:
    """Return the processes of launchers and clients that still use a folder's ssh."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words = " ".join(process.info["cmdline"] or ())
        path = (process.info["environ"] or {}).get("PATH", "")
        if str(folder) in words or str(folder) in path.split(":"):
            found.append(words)
    return found


def start(folder: Path, launcher: str) -> subprocess.Popen[str]:
    """Start a launcher of this checkout, whatever .venv/bin has links to."""
    kind, *words = LAUNCHERS[launcher]
    if "--launcher" in words and not INTERFACES:
        pytest.skip("this machine has no network")
    (folder / "one").write_text("ip2\n")
    write_program(folder / "ssh", SSH[kind])
    path = (folder, ROOT / "setup-utils/launchers", Path(sys.prefix) / "bin", os.environ["PATH"])
    variables = {"HOST_TIMEOUT": str(HOST_TIMEOUT), "HOSTS": "localhost:1,ip2:1"}
    variables.update(PATH=":".join(map(str, path)), VIRTUAL_ENV=sys.prefix)
    return subprocess.Popen(
        [word.format(folder=folder) for word in words], cwd=ROOT, env={**os.environ, **variables},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def ends(process: subprocess.Popen[str], folder: Path) -> tuple[str, str]:
    """Return what it prints until it ends in time; nothing is left then."""
    try:
        output, errors = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"still there after {LONGEST} s: {process.communicate()}")
    # What was killed may take a moment to be gone on a busy machine.
    end = time.monotonic() + 5
    while left(folder):
        assert time.monotonic() < end, left(folder)
        time.sleep(0.05)
    return output, errors


def test_a_host_that_does_not_let_in_is_one_line(tmp_path: Path) -> None:
    """All at once: most of them wait."""
    started = []
    for number, launcher in enumerate(LAUNCHERS):
        folder = tmp_path / str(number)
        folder.mkdir()
        started.append((launcher, folder, start(folder, launcher)))
    for launcher, folder, process in started:
        output, errors = ends(process, folder)
        assert process.returncode == 2, (launcher, errors)
        if launcher == "check":
            assert not errors and "\nwrong  ip2: " in output
            continue
        assert not output
        assert errors.startswith("error: host ip2: no connection by ssh ("), launcher
        assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        ("run.sh", signal.SIGINT),
        ("mpirun", signal.SIGTERM),
        ("horovodrun", signal.SIGINT),
        ("launch", signal.SIGTERM),
        ("check", signal.SIGTERM),
    ],
)
def test_a_launcher_that_is_asked_to_stop_while_it_connects(
    launcher: str, tmp_path: Path, number: signal.Signals
) -> None:
    process = start(tmp_path, launcher)
    end = time.monotonic() + LONGEST
    while "sleep 300" not in left(tmp_path):
        assert process.poll() is None and time.monotonic() < end, "no ssh"
        time.sleep(0.05)
    began = time.monotonic()
    process.send_signal(number)
    _, errors = ends(process, tmp_path)
    assert time.monotonic() - began < 8
    assert process.returncode == 128 + number, errors
    assert len(errors.splitlines()) == launcher.startswith("run.sh"), errors
