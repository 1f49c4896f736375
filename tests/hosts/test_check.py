"""``python -m parallel.check`` on two hosts: every mistake is planted, found and named; no other.

Each host has a copy of the project with an environment of its own in a private folder. MXNet and
Horovod are small stubs there, so that a host can have other versions; ssh, network, disks and
limits are real. The healthy hosts have the real packages, too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Callable

import pytest

from tests.support import hosts
from tests.support.hosts import Host, TwoHosts

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
PACKAGES = Path(f"{sys.prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")
PRODUCT = (
    *("backbones", "data", "evaluation", "parallel", "partial_fc", "runtime", "training"),
    "setup-utils",
)
FIRST, SECOND = "10.77.0.1", "10.77.0.2"
BOTH = ("-H", f"{FIRST}:1,{SECOND}:1")
# A host that hangs is given up after 20 s; a busy machine needs some to start Python.
LONGEST = 60
WHY_NOT = hosts.missing()
pytestmark = [pytest.mark.hosts, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


def sh(host: Host, script: str, *arguments: object) -> None:
    """Run a script on a host."""
    subprocess.run(host.inside("sh", "-ec", script, "sh", *arguments), check=True)


class Cluster:
    """Two hosts with a project each in a folder of their own."""

    def __init__(self, two: TwoHosts, folder: Path, private: Path) -> None:
        self.two, self.folder, self.private = two, folder, private
        made = folder / "project"
        made.mkdir()
        for path in (*ROOT.glob("*.py"), *ROOT.glob("*.sh")):
            shutil.copy(path, made)
        for name in PRODUCT:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, made / name, symlinks=True, ignore=ignored)
        python = Path(os.path.realpath(sys.executable))
        packages = made / ".venv" / PACKAGES.relative_to(sys.prefix)
        files = {
            made / ".venv/pyvenv.cfg": f"home = {python.parent}\n",
            packages / "real.pth": f"import site; site.addsitedir({str(PACKAGES)!r})\n",
            packages / "mxnet.py": "",
            packages / "horovod/__init__.py": "",
            packages / "horovod/mxnet.py": "mpi_built = gloo_built = lambda: True\n"
            "nccl_built = lambda: False\n",
        }
        for name, version in (("mxnet", "1.9.1"), ("horovod", "0.28.1")):
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            files[packages / f"{name}-{version}.dist-info/METADATA"] = text
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (made / ".venv/bin").mkdir()
        (made / ".venv/bin/python").symlink_to(python)
        for host in two.all:
            sh(host, 'cp -a "$1" "$2"', made, private / "project")

    def check(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run it in the private project."""
        project = self.private / "project"
        words = ("python", "-m", "parallel.check", *BOTH, *options)
        path = [project / ".venv/bin", PROGRAMS]
        return self.two.run(*words, folder=project, path=path)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("check")
    private = folder / "private"
    private.mkdir()
    with TwoHosts(folder / "hosts", private) as two:
        yield Cluster(two, folder, private)


Plant = Callable[[Cluster], AbstractContextManager[object]]


def second_does(script: str, undo: str) -> Plant:
    """Scripts on the second host, in its private folder."""

    @contextmanager
    def plant(cluster: Cluster) -> Iterator[None]:
        sh(cluster.two.second, f'cd "$1"; {script}', cluster.private)
        try:
            yield
        finally:
            sh(cluster.two.second, f'cd "$1"; {undo}', cluster.private)

    return plant


def instead(path: str, text: str) -> Plant:
    """Another program or module in the environment of the second host."""
    there, lines = f"project/.venv/{path}", "\\n".join(text.splitlines())
    return second_does(
        f'[ ! -e {there} ] || mv {there} kept; printf "{lines}\\n" >{there}; chmod +x {there}',
        f"rm {there}; [ ! -e kept ] || mv kept {there}",
    )


def ssh_client(change: Callable[[str, Path], str]) -> Plant:
    """Another configuration of the clients; known_hosts is that of the test."""

    @contextmanager
    def plant(cluster: Cluster) -> Iterator[None]:
        folder = cluster.two.folder
        config, known = folder / "ssh_config", folder / "known_hosts"
        text, keys = config.read_text(), known.read_text() if known.exists() else ""
        if not (folder / "other").exists():
            key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "other")]
            subprocess.run(key, check=True)
        config.write_text(change(text, folder))
        try:
            yield
        finally:
            config.write_text(text)
            known.write_text(keys)

    return plant


def _changed_key(text: str, folder: Path) -> str:
    (folder / "known_hosts").write_text(f"{SECOND} {(folder / 'other.pub').read_text()}")
    return text.replace("StrictHostKeyChecking no", "StrictHostKeyChecking ask")


@contextmanager
def stopped_sshd(cluster: Cluster) -> Iterator[None]:
    os.kill(cluster.two.second.server_pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(cluster.two.second.server_pid, signal.SIGCONT)


METADATA = "project/.venv/lib/*/site-packages/mxnet*/METADATA"
LIBRARY = f"{PACKAGES.relative_to(sys.prefix)}"
# The kernel refuses 65535 in a rule.
DROP = "pref 0 iif eth0 ipproto tcp dport 1024-65534 blackhole"
# What is planted, and how it is told of which host.
MISTAKES: dict[str, tuple[Plant, str]] = {
    "a key that is refused": (
        ssh_client(lambda text, folder: text.replace(f"{folder}/key", f"{folder}/other")),
        rf"{SECOND}: ssh without a password is refused; ssh-copy-id 10\.77\.0\.2",
    ),
    "a host key that has changed": (
        ssh_client(_changed_key), f"{SECOND}: its host key is another one .*ssh-keygen -R",
    ),
    "no ssh server": (
        ssh_client(lambda text, _: f"{text}Port 2222\n"),
        f"{SECOND}: nothing listens on its ssh port; start sshd",
    ),
    "an ssh server that hangs": (stopped_sshd, f"{SECOND}: ssh gets no answer; "),
    "a process that hangs": (
        instead("bin/python", "#!/bin/sh\nkill -STOP \\$\\$\n"),
        f"{SECOND}: it has given no sign of life for 20 s; ",
    ),
    "another MXNet": (
        second_does(f"sed -i s/1.9.1/1.8.0/ {METADATA}", f"sed -i s/1.8.0/1.9.1/ {METADATA}"),
        rf"{SECOND}: MXNet is mxnet 1\.8\.0, but mxnet 1\.9\.1 on 10\.77\.0\.1; .*make env",
    ),
    "an MXNet that does not load": (
        instead(f"{LIBRARY}/mxnet.py", "raise OSError('libgomp.so.1: no such file')\n"),
        rf"{SECOND}: mxnet does not load as it should \(OSError: libgomp.so.1: no such",
    ),
    "another project": (
        second_does("cp -p project/training/loop.py kept; echo >>project/training/loop.py",
                    "mv kept project/training/loop.py"),
        rf"{SECOND}: this project is not that of 10\.77\.0\.1: training/loop\.py differs; ",
    ),
    "no project": (
        second_does("mv project kept", "mv kept project"),
        f"{SECOND}: the project is not in .*/project there; copy it to the same path",
    ),
    "no environment": (
        second_does("mv project/.venv kept", "mv kept project/.venv"),
        rf"{SECOND}: there is no .*/\.venv/bin/python; make env there",
    ),
    "a firewall that lets ssh alone pass": (
        # The table of the host's own addresses comes after, so that the rule is obeyed.
        second_does(
            f"ip rule add pref 1 lookup local; ip rule add {DROP}; ip rule del pref 0 lookup local",
            f"ip rule add pref 0 lookup local; ip rule del {DROP}; ip rule del pref 1 lookup local",
        ),
        rf"{FIRST}: a port of it is not reached from 10\.77\.0\.2 \(timed out\); .*wall"
        rf"|{SECOND}: a port of it is not reached from 10\.77\.0\.1 \(timed out\); .*wall",
    ),
    "a disk that cannot be written": (
        second_does("mkdir project/models; mount -t tmpfs -o ro tmpfs project/models",
                    "umount project/models; rmdir project/models"),
        f"{SECOND}: --models-root cannot be used .*/models cannot be written",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found_and_no_other(cluster: Cluster, name: str) -> None:
    plant, pattern = MISTAKES[name]
    with plant(cluster):
        start = time.monotonic()
        result = cluster.check()
        seconds = time.monotonic() - start
    assert (result.returncode, result.stderr) == (2, ""), result.stdout
    assert seconds < LONGEST, result.stdout
    lines = [line[7:] for line in result.stdout.splitlines() if line.startswith("wrong  ")]
    assert len(lines) == 1 + pattern.count(f"|{SECOND}"), result.stdout
    assert all(re.match(pattern, line) for line in lines), result.stdout
    assert result.stdout.endswith(f"{len(lines)} wrong\n")


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        # A user who has logged in from elsewhere.
        (BOTH, {"SSH_CONNECTION": "192.0.2.1 5 192.0.2.2 22"}),
        (("-H", "host1:2,host2:2"), {"NIC": "eth1"}),
        (("--hostfile", "hostfile"), {}),
        ((), {}),
    ],
    ids=["addresses", "names and NIC", "hostfile", "alone"],
)
def test_healthy_hosts_have_no_findings(cluster: Cluster, tmp_path, options, variables) -> None:
    """With the project and the packages of this environment."""
    (tmp_path / "hostfile").write_text("host1 slots=2\nhost2 slots=1 # the last\n")
    words = [str(tmp_path / word) if word == "hostfile" else word for word in options]
    command = ("python", "-m", "parallel.check", *words)
    result = cluster.two.run(*command, folder=ROOT, path=[PROGRAMS], **variables)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    assert result.stdout.endswith("\nhealthy: nothing is wrong\n")
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "192.0.2" not in result.stdout
    assert "0.28.1" in result.stdout and ("host2" in result.stdout) == bool(options)


def test_healthy_hosts_as_json(cluster: Cluster) -> None:
    before = {host.name: len(host.processes()) for host in cluster.two.all}
    result = cluster.check("--json")
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["findings"] == [] and list(found["facts"]) == [FIRST, SECOND]
    assert len(found["pairs"]) == 2 and found["facts"][SECOND]["hostname"] == "host2"
    assert {host.name: len(host.processes()) for host in cluster.two.all} == before
