"""What hosts say before a job starts, with a script in place of ssh that plays the hosts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallel.launch import ssh
from parallel.launch.network_interface import NetworkInterface
from runtime.errors import ConfigError
from tests.support import processes

LOOPBACK = NetworkInterface("lo", "127.0.0.1")
# A host is known by its name; what comes after it is the command that it is to run.
HOSTS = """#!/bin/sh
while [ "${1#-o}" != "$1" ]; do shift; done
case $1 in
    healthy) echo "welcome"; exec sh -c "$2" ;;
    unreachable) echo "banner" >&2; echo "connect to host: No route to host" >&2; exit 255 ;;
    silent) exit 255 ;;
    hangs) echo $$ >"$(dirname "$0")/hangs"; exec sleep 300 ;;
    persists) sleep 300 >/dev/null </dev/null & echo $! >"$(dirname "$0")/left"; exec sh -c "$2" ;;
    answers) [ "$2" = true ]; exit ;;
    elsewhere) exec sh -c "cd /nowhere && $2" ;;
    other_interface) exec sh -c "$(echo "$2" | sed 's/ lo / ethx /')" ;;
    other_network) exec sh -c "$(echo "$2" | sed 's/ lo 127.0.0.1 [0-9]*$/ lo 127.0.0.1 1/')" ;;
    chatty) echo "no JSON" ;;
    older) echo '["127.0.0.1"]' ;;
    wrong) echo '["127.0.0.1; true", "127.0.0.1"]' ;;
    number) echo '[7, "127.0.0.1"]' ;;
esac
"""


@pytest.fixture(autouse=True)
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ssh"
    program.write_text(HOSTS)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_a_host_says_its_address_on_the_interface_and_by_its_name() -> None:
    reports = ssh.ask(["healthy"], LOOPBACK)
    assert reports["healthy"].address == "127.0.0.1"
    assert re.fullmatch(r"(\d+\.){3}\d+|", reports["healthy"].named)


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("unreachable", r"no connection by ssh \(connect to host: No route to host\); it has to"),
        ("silent", r"no connection by ssh \(no reason given\)"),
        ("elsewhere", r".*/nowhere; every host needs the project and its environment in the same"),
        ("other_interface", "-i ethx: no such network interface.*; this machine has"),
        ("other_network", "its address 127.0.0.1 on lo does not reach the launcher's, 127.0.0.1 "),
        ("chatty", "does not answer with its address but with 'no JSON"),
        ("older", "does not answer"),
        ("wrong", "does not answer"),
        ("number", "does not answer"),
    ],
)
def test_a_host_that_cannot_take_part_is_a_line_that_names_it(host: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^host {host}:? {message}") as raised:
        ssh.ask(["healthy", host], LOOPBACK)
    assert "\n" not in str(raised.value)


def test_hosts_that_fail_are_told_with_the_reason(tmp_path: Path) -> None:
    found = dict(ssh.failures(["answers", "hangs", "unreachable"], 1.0))
    assert list(found) == ["unreachable", "hangs"]
    assert str(found["unreachable"]) == (
        "host unreachable: no connection by ssh (connect to host: No route to host); it has to "
        "work without a question: ssh -oBatchMode=yes unreachable true"
    )
    assert str(found["hangs"]).startswith("host hangs: no connection by ssh (no answer in 1 s)")
    assert not processes.left([int((tmp_path / "hangs").read_text())])


def test_the_first_host_that_fails_ends_the_question() -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match="host silent: no connection by ssh"):
        ssh.check(["hangs", "silent"], 60.0)
    assert time.monotonic() - began < 20
    ssh.check(["answers"])


def test_a_machine_without_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for start in (lambda: ssh.check(["a"]), lambda: ssh.ask(["a"], LOOPBACK)):
        with pytest.raises(ConfigError, match="the program ssh cannot be started"):
            start()


def test_a_master_that_stays_behind_keeps_nobody(tmp_path: Path) -> None:
    """OpenSSH before 8.5 leaves the standard error to it."""
    start = time.monotonic()
    try:
        assert ssh.ask(["persists"], LOOPBACK)["persists"].address == "127.0.0.1"
        assert time.monotonic() - start < 60
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


def test_a_host_that_hangs_has_no_more_time_than_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "ANSWER_SECONDS", 1.0)
    with pytest.raises(ConfigError, match=r"no connection by ssh \(no answer in 1 s\)"):
        ssh.ask(["hangs"], LOOPBACK)
    assert not processes.left([int((tmp_path / "hangs").read_text())])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_ends_what_has_been_started(tmp_path: Path, number: signal.Signals) -> None:
    script = "from parallel.launch import ssh\nwith ssh.exits_on_signals(): ssh.check(['hangs'])"
    root = str(Path(__file__).resolve().parents[3])
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": root},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not (tmp_path / "hangs").exists() or not (tmp_path / "hangs").read_text():
        time.sleep(0.05)
    process.send_signal(number)
    assert process.communicate(timeout=20)[1] == ""
    assert process.returncode == 128 + number
    assert not processes.left([int((tmp_path / "hangs").read_text())])
