"""``python -m parallel.check`` on two hosts: what ssh and the network do is found and named.

What hosts may say of their packages, disks and GPUs is in tests/parallel/check.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.hosts import TwoHosts

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
FIRST, SECOND = "10.77.0.1", "10.77.0.2"
BOTH = ("-H", f"{FIRST}:1,{SECOND}:1")
# A host that hangs is given up after 20 s; a busy machine needs some to start Python.
LONGEST = 60
# The kernel refuses 65535 in a rule.
RULE = "pref 0 iif eth0 ipproto tcp dport 1024-65534 blackhole"


def check(two: TwoHosts, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    words = ("python", "-m", "parallel.check", *options)
    return two.run(*words, folder=ROOT, path=[PROGRAMS], **variables)


@contextmanager
def ssh_client(two: TwoHosts, fault: str) -> Iterator[None]:
    """Another configuration of the clients; known_hosts is that of the test."""
    config, known, other = (two.folder / name for name in ("ssh_config", "known_hosts", "other"))
    text, keys = config.read_text(), known.read_text() if known.exists() else ""
    if not other.exists():
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)]
        subprocess.run(command, check=True)
    if fault == "refused":
        config.write_text(text.replace(f"{two.folder}/key", str(other)))
    elif fault == "closed":
        config.write_text(f"{text}Port 2222\n")
    else:
        key = other.with_suffix(".pub").read_text()
        known.write_text(f"{SECOND} {key}" if fault == "changed" else "")
        config.write_text(text.replace("StrictHostKeyChecking no", "StrictHostKeyChecking ask"))
    yield
    config.write_text(text)
    known.write_text(keys)


@contextmanager
def hanging(two: TwoHosts, _: str) -> Iterator[None]:
    os.kill(two.second.server_pid, signal.SIGSTOP)
    yield
    os.kill(two.second.server_pid, signal.SIGCONT)


@contextmanager
def second_does(two: TwoHosts, script: str) -> Iterator[None]:
    """A script on the second host, and after ``UNDO`` what takes it back."""
    do, undo = script.split(" UNDO ")
    subprocess.run(two.second.inside("sh", "-ec", do), check=True)
    yield
    subprocess.run(two.second.inside("sh", "-ec", undo), check=True)


MISTAKES = {
    "a key that is refused": (ssh_client, "refused", [r"ssh without a password is refused; ssh-"]),
    "an unknown key": (ssh_client, "unknown", [r"ssh does not know its host key; "]),
    "a changed key": (ssh_client, "changed", [r"its host key is another one .*ssh-keygen -R"]),
    "no ssh server": (ssh_client, "closed", ["nothing listens on its ssh port; start sshd"]),
    "an ssh server that hangs": (hanging, "", ["ssh gets no answer; .*whether sshd hangs"]),
    "a firewall that lets ssh alone pass": (
        second_does,
        # The table of the host's own addresses comes after, so that the rule is obeyed.
        f"ip rule add pref 1 lookup local; ip rule add {RULE}; ip rule del pref 0 lookup local"
        f" UNDO ip rule add pref 0 lookup local; ip rule del {RULE}; ip rule del pref 1",
        [
            r"a port of it is not reached from 10\.77\.0\.2 \(timed out\); .*wall",
            r"a port of it is not reached from 10\.77\.0\.1 \(timed out\); .*wall",
        ],
    ),
    "a slow link": (
        second_does,
        "tc qdisc add dev eth0 root tbf rate 80mbit burst 32kb latency 400ms"
        " UNDO tc qdisc del dev eth0 root",
        [r"it sends (\d|1\d)(\.\d+)? MB/s to 10\.77\.0\.1, and 50 are expected; "],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found_and_no_other(two: TwoHosts, name: str) -> None:
    plant, argument, wrong = MISTAKES[name]
    with plant(two, argument):
        start = time.monotonic()
        result = check(two, *BOTH)
        assert time.monotonic() - start < LONGEST, result.stdout
    assert (result.returncode, result.stderr) == (2, "")
    lines = sorted(line[7:] for line in result.stdout.splitlines() if line.startswith("wrong  "))
    assert len(lines) == len(wrong), result.stdout
    for line, pattern in zip(lines, wrong):
        assert re.match(rf"10\.77\.0\.\d: {pattern}", line), result.stdout


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        # A user who has logged in from elsewhere.
        (BOTH, {"SSH_CONNECTION": "192.0.2.1 5 192.0.2.2 22"}),
        (("-H", "host1:2,host2:2"), {"NIC": "eth1"}),
    ],
)
def test_healthy_hosts_have_no_findings(
    two: TwoHosts, options: tuple[str, ...], variables: dict[str, str]
) -> None:
    before = [len(host.processes()) for host in two.all]
    result = check(two, *options, **variables)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    assert result.stdout.endswith("\nhealthy: nothing is wrong\n")
    assert "192.0.2" not in result.stdout and "host2" in result.stdout
    assert [len(host.processes()) for host in two.all] == before
    found = json.loads(check(two, *options, "--json", **variables).stdout)
    assert found["findings"] == [] and len(found["pairs"]) == 2
