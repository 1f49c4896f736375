"""``python -m parallel.check`` on two hosts: every mistake is planted, found and named."""

import re
import time
from pathlib import Path

import pytest

from tests.support.hosts import MARKS, PROGRAMS, ROOT, TwoHosts

pytestmark = MARKS
FIRST, SECOND = "10.77.0.1", "10.77.0.2"
BOTH = ("-H", f"{FIRST}:1,{SECOND}:1")
# A host that hangs is given up after 20 s; a busy machine needs some to start Python.
LONGEST = 90
# The kernel refuses 65535 in a rule.
DROP = "pref 0 iif eth0 ipproto tcp dport 1024-65534 blackhole"
# Files of ssh are mounted on the hosts, so they are written where they are.
KEEP = 'cd "$4"; cp ssh_config kept; test -e other || ssh-keygen -q -t ed25519 -N "" -f other; '
RESTORE = 'cat "$4/kept" >"$4/ssh_config"; '
# Scripts of the second host ($1: its own folder, $2: programs, $3: the project, $4: files of ssh,
# $5: the ssh server) that begin and end a mistake, and how it is told.
MISTAKES = {
    "a process that hangs": (
        'mount -t tmpfs tmpfs "$2"; printf "#!/bin/sh\\nkill -STOP \\$\\$\\n" >"$2/python"; '
        'chmod +x "$2/python"',
        'umount -l "$2"',
        f"{SECOND}: it has given no sign of life for 20 s; ",
    ),
    "no environment": (
        'mount -t tmpfs tmpfs "$2"', 'umount -l "$2"',
        rf"{SECOND}: there is no .*/bin/python; make env there",
    ),
    "no project": (
        'mount -t tmpfs tmpfs "$3/parallel/check"', 'umount -l "$3/parallel/check"',
        f"{SECOND}: the project in ",
    ),
    "another project": (
        'cp "$3/training/loop.py" "$1/"; echo >>"$1/loop.py"; '
        'mount --bind "$1/loop.py" "$3/training/loop.py"',
        'umount -l "$3/training/loop.py"',
        rf"{SECOND}: this project is not that of 10\.77\.0\.1: training/loop\.py differs; ",
    ),
    "a firewall that lets ssh alone pass": (
        # The table of the host's own addresses comes after, so that the rule is obeyed.
        f"ip rule add pref 1 lookup local; ip rule add {DROP}; ip rule del pref 0 lookup local",
        f"ip rule add pref 0 lookup local; ip rule del {DROP}; ip rule del pref 1 lookup local",
        rf"{FIRST}: a port of it is not reached from 10\.77\.0\.2 \(timed out\); .*wall"
        rf"|{SECOND}: a port of it is not reached from 10\.77\.0\.1 \(timed out\); .*wall",
    ),
    "a disk that cannot be written": (
        'mount -t tmpfs -o ro tmpfs "$1"', 'umount -l "$1"',
        f"{SECOND}: --models-root cannot be used .*/own disk cannot be written",
    ),
    "a refused key": (
        KEEP + 'sed "s,$4/key,$4/other," kept >ssh_config', RESTORE,
        rf"{SECOND}: ssh without a password is refused; ssh-copy-id 10\.77\.0\.2",
    ),
    "a changed host key": (
        KEEP + 'sed "s/HostKeyChecking no/HostKeyChecking ask/" kept >ssh_config; '
        f'echo "{SECOND} $(cat other.pub)" >known_hosts',
        RESTORE + 'rm "$4/known_hosts"',
        f"{SECOND}: its host key is another one .*ssh-keygen -R",
    ),
    "an ssh server that hangs": (
        'kill -STOP "$5"', 'kill -CONT "$5"', f"{SECOND}: ssh gets no answer; "
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found_and_no_other(two: TwoHosts, private: Path, name: str) -> None:
    begins, ends, pattern = MISTAKES[name]
    places = (private, PROGRAMS, ROOT, two.folder, two.second.server_pid)
    words = ("python", "-m", "parallel.check", *BOTH, "--models-root", private)
    two.second.sh(begins, *places)
    try:
        start = time.monotonic()
        result = two.run(*words, folder=ROOT, path=[PROGRAMS])
        seconds = time.monotonic() - start
    finally:
        two.second.sh(ends, *places)
    assert (result.returncode, result.stderr) == (2, ""), result.stdout
    assert seconds < LONGEST, result.stdout
    lines = [line[7:] for line in result.stdout.splitlines() if line.startswith("wrong  ")]
    assert len(lines) == 1 + pattern.count(f"|{SECOND}"), result.stdout
    assert all(re.match(pattern, line) for line in lines), result.stdout
    assert result.stdout.endswith(f"{len(lines)} wrong\n")


@pytest.mark.parametrize(("options", "variables"), [
    (BOTH, {"SSH_CONNECTION": "192.0.2.1 5 192.0.2.2 22"}),
    (("-H", "host1:2,host2:2"), {"NIC": "eth1"}),
    (("--hostfile", "hostfile"), {}),
    ((), {}),
], ids=["addresses", "names and NIC", "hostfile", "alone"])  # fmt: skip
def test_healthy_hosts_have_no_findings(two: TwoHosts, tmp_path, options, variables) -> None:
    (tmp_path / "hostfile").write_text("host1 slots=2\nhost2 slots=1 # the last\n")
    words = [str(tmp_path / word) if word == "hostfile" else word for word in options]
    before = [len(host.processes()) for host in two.all]
    command = ("python", "-m", "parallel.check", *words)
    result = two.run(*command, folder=ROOT, path=[PROGRAMS], **variables)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    assert result.stdout.endswith("\nhealthy: nothing is wrong\n")
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "192.0.2" not in result.stdout
    assert "0.28.1" in result.stdout and ("host2" in result.stdout) == bool(options)
    # Those that an earlier test has stopped may have ended meanwhile.
    assert all(len(host.processes()) <= old for host, old in zip(two.all, before))
