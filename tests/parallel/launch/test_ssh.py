"""What hosts say before a job starts, with a script in place of ssh that plays the hosts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from parallel.launch import ssh
from parallel.launch.network_interface import NetworkInterface
from runtime.errors import ConfigError

LOOPBACK = NetworkInterface("lo", "127.0.0.1")
# A host is known by its name; what comes after it is the command that it is to run.
HOSTS = """#!/bin/sh
while [ "${1#-o}" != "$1" ]; do shift; done
case $1 in
    healthy) echo "welcome"; exec sh -c "$2" ;;
    unreachable) echo "banner" >&2; echo "connect to host: No route to host" >&2; exit 255 ;;
    silent) exit 255 ;;
    elsewhere) exec sh -c "cd /nowhere && $2" ;;
    other_interface) exec sh -c "$(echo "$2" | sed 's/ lo / ethx /')" ;;
    other_network) exec sh -c "$(echo "$2" | sed 's/ lo 127.0.0.1 [0-9]*$/ lo 127.0.0.1 1/')" ;;
    chatty) echo "no JSON" ;;
    empty) ;;
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
        ("empty", "does not answer with its address but with ''"),
        ("older", "does not answer"),
        ("wrong", "does not answer"),
        ("number", "does not answer"),
    ],
)
def test_a_host_that_cannot_take_part_is_a_line_that_names_it(host: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^host {host}:? {message}") as raised:
        ssh.ask(["healthy", host], LOOPBACK)
    assert "\n" not in str(raised.value)
