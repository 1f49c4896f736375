"""``python -m parallel.check`` on two hosts: every mistake is planted, found and named; no other.

Each host has a copy of the project with an environment of its own in a private folder. MXNet,
Horovod and all of NVIDIA are small stubs there, so that a host can have other versions, other
libraries and GPUs; ssh, network, disks and limits are real. The healthy hosts have the real
packages, too.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Callable

import pytest

from runtime import processors
from tests.pythons.campaign import VERSIONS, candidates
from tests.support import hosts
from tests.support.check_cluster import (
    BOTH,
    FIRST,
    INSTALLED,
    PROGRAMS,
    ROOT,
    SECOND,
    Cluster,
    Mistake,
    Plant,
    Wrong,
    assert_found,
    instead,
    second_does,
)

# The kernel refuses 65535 in a rule.
PORTS = "1024-65534"
WHY_NOT = hosts.missing()
pytestmark = [pytest.mark.hosts, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


@contextmanager
def link_down(cluster: Cluster) -> Iterator[None]:
    """When the probe has started."""
    text = "#!/bin/sh\nip link set eth0 down\nsleep 40\n"
    try:
        with instead("{project}/.venv/bin/python", text)(cluster):
            yield
    finally:
        cluster.second.ip("link", "set", "eth0", "up")


def ssh_client(change: Callable[[str, Path], str]) -> Plant:
    """Another configuration of the clients; known_hosts is that of the test."""

    @contextmanager
    def plant(cluster: Cluster) -> Iterator[None]:
        folder = cluster.two.folder
        config, known = folder / "ssh_config", folder / "known_hosts"
        text, keys = config.read_text(), known.read_text() if known.exists() else ""
        config.write_text(change(text, folder))
        try:
            yield
        finally:
            config.write_text(text)
            known.write_text(keys)

    return plant


def _unknown(text: str, folder: Path) -> str:
    (folder / "known_hosts").write_text("")
    return text.replace("StrictHostKeyChecking no", "StrictHostKeyChecking ask")


def _changed(text: str, folder: Path) -> str:
    _new_key(folder / "other_host")
    key = (folder / "other_host.pub").read_text()
    (folder / "known_hosts").write_text(f"{SECOND} {key}")
    return text.replace("StrictHostKeyChecking no", "StrictHostKeyChecking ask")


def _refused(text: str, folder: Path) -> str:
    _new_key(folder / "other")
    return text.replace(f"{folder}/key", f"{folder}/other")


def _new_key(path: Path) -> None:
    if not path.exists():
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
        subprocess.run(command, check=True)


@contextmanager
def stopped_sshd(cluster: Cluster) -> Iterator[None]:
    server = cluster.second._server.pid
    os.kill(server, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server, signal.SIGCONT)


@contextmanager
def few_files(cluster: Cluster) -> Iterator[None]:
    """As if limits.conf said so: sessions have the limits of the server."""
    server = cluster.second._server.pid
    before = resource.prlimit(server, resource.RLIMIT_NOFILE)
    resource.prlimit(server, resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server, resource.RLIMIT_NOFILE, before)


def other_python(cluster: Cluster) -> AbstractContextManager[object]:
    own = "{}.{}".format(*sys.version_info)
    found = [one for version in VERSIONS if version != own for one in candidates(version)]
    if not found:
        pytest.skip("there is no other Python")
    text = f'#!/bin/sh\nexec {found[-1]} "$@"\n'
    return instead("{project}/.venv/bin/python", text)(cluster)


@contextmanager
def name_is_loopback(cluster: Cluster) -> Iterator[None]:
    """As Debian's installer writes the hosts file."""
    file = cluster.two.folder / "hosts"
    text = file.read_text()
    file.write_text(text.replace(f"{SECOND} host2", "127.0.1.1 host2"))
    try:
        yield
    finally:
        file.write_text(text)


@contextmanager
def bridge(cluster: Cluster) -> Iterator[None]:
    """A named network of Docker, on both hosts."""
    for host in cluster.two.all:
        host.ip("link", "add", "br-0123", "type", "bridge")
        host.ip("addr", "add", "172.18.0.1/16", "dev", "br-0123")
    try:
        yield
    finally:
        for host in cluster.two.all:
            host.ip("link", "del", "br-0123")


@contextmanager
def one_way(cluster: Cluster) -> Iterator[None]:
    """What the first host sends to the second's address is lost; the second one's replies are not.

    Packets for that address go to a network card that does not exist, as into a firewall that says
    nothing. The second host connects from another address of its own.
    """
    first, second = cluster.two.all
    second.ip("addr", "add", "10.78.0.22/32", "dev", "eth1")
    network = ("10.78.0.0/24", "dev", "eth1", "src")
    second.ip("route", "replace", *network, "10.78.0.22")
    neighbor = ("10.78.0.2", "lladdr", "02:00:00:00:00:99", "dev", "eth1", "nud", "permanent")
    first.ip("neigh", "replace", *neighbor)
    try:
        yield
    finally:
        first.ip("neigh", "del", "10.78.0.2", "dev", "eth1")
        second.ip("route", "replace", *network, "10.78.0.2")
        second.ip("addr", "del", "10.78.0.22/32", "dev", "eth1")


NO_SSH = {
    "a key that is refused": ssh_client(_refused),
    "a host key that is unknown": ssh_client(_unknown),
    "a host key that has changed": ssh_client(_changed),
    "no ssh server": ssh_client(lambda text, _: f"{text}Port 2222\n"),
}
SAID = {
    "a key that is refused": r"ssh without a password is refused; ssh-copy-id 10\.77\.0\.2",
    "a host key that is unknown": r"ssh does not know its host key; .*ssh 10\.77\.0\.2",
    "a host key that has changed": r"its host key is another one .*ssh-keygen -R 10\.77\.0\.2",
    "no ssh server": "nothing listens on its ssh port; start sshd",
}
STUB_MPIRUN = '#!/bin/sh\necho "mpirun (Open MPI) 4.0.7"\n'
DROP = f"ip rule add pref 0 iif eth0 ipproto tcp dport {PORTS} blackhole"
KEEP = f"ip rule del pref 0 iif eth0 ipproto tcp dport {PORTS} blackhole"
MISTAKES: dict[str, Mistake] = {
    **{name: Mistake(plant, (Wrong(SECOND, SAID[name]),)) for name, plant in NO_SSH.items()},
    "no such host": Mistake(
        lambda _: nullcontext(),
        (Wrong("10.77.0.9", "there is no route to it; look whether it runs"),),
        ("-H", f"{FIRST}:1,10.77.0.9:1"),
    ),
    "an unknown name": Mistake(
        lambda _: nullcontext(),
        (Wrong("host3", "ssh does not know this name; correct -H"),),
        ("-H", f"{FIRST}:1,host3:1"),
    ),
    "an ssh server that hangs": Mistake(
        stopped_sshd, (Wrong(SECOND, "ssh gets no answer; .*whether sshd hangs"),)
    ),
    "a process that hangs": Mistake(
        instead("{project}/.venv/bin/python", "#!/bin/sh\nkill -STOP $$\n"),
        (Wrong(SECOND, "it has given no sign of life for 20 s; .*ssh 10.77.0.2 uptime"),),
    ),
    "a link that goes down meanwhile": Mistake(
        link_down,
        (Wrong(SECOND, "(ssh gets no answer|it has given no sign of life)"),),
    ),
    "another Python": Mistake(
        other_python,
        (
            Wrong(SECOND, r"Python is 3\.\d+, but 3\.\d+ on 10\.77\.0\.1; "),
            Wrong(SECOND, "MXNet is not installed; make env"),
            Wrong(SECOND, "Horovod is not installed; make env"),
        ),
    ),
    "another MXNet": Mistake(
        second_does(f"cd {INSTALLED}; sed -i s/1.9.1/1.8.0/ mxnet*/METADATA",
                    f"cd {INSTALLED}; sed -i s/1.8.0/1.9.1/ mxnet*/METADATA"),
        (Wrong(SECOND, r"MXNet is mxnet 1\.8\.0, but mxnet 1\.9\.1 on 10\.77\.0\.1; .*make env"),),
    ),
    "an MXNet that does not load": Mistake(
        instead("{packages}/mxnet.py", "raise OSError('libgomp.so.1: no such file')\n"),
        (Wrong(SECOND, r"mxnet does not load as it should \(OSError: libgomp.so.1: no such"),),
    ),
    "another Horovod": Mistake(
        second_does(f"cd {INSTALLED}; sed -i s/0.28.1/0.27.0/ horovod*/METADATA",
                    f"cd {INSTALLED}; sed -i s/0.27.0/0.28.1/ horovod*/METADATA"),
        (Wrong(SECOND, r"Horovod is 0\.27\.0, but 0\.28\.1 on 10\.77\.0\.1; "),),
    ),
    "a Horovod without Gloo": Mistake(
        instead("{packages}/horovod/mxnet.py",
                "mpi_built = lambda: True\ngloo_built = nccl_built = lambda: False\n"),
        (Wrong(SECOND, "Horovod is built without Gloo; "),),
    ),
    "another Open MPI": Mistake(
        instead("{project}/.venv/bin/mpirun", STUB_MPIRUN),
        (Wrong(SECOND, r"Open MPI is 4\.0\.7, but \d[\d.]+ on 10\.77\.0\.1; "),),
    ),
    "another project": Mistake(
        second_does("cp -p project/training/loop.py kept; echo >>project/training/loop.py",
                    "mv kept project/training/loop.py"),
        (Wrong(SECOND, r"this project is not that of 10\.77\.0\.1: training/loop\.py differs; "),),
    ),
    "an earlier project": Mistake(
        second_does("mv project/parallel/check kept", "mv kept project/parallel/check"),
        (Wrong(SECOND, r"the project in .* is another one \(.*No module named 'parallel.check'"),),
    ),
    "no project": Mistake(
        second_does("mv project kept", "mv kept project"),
        (Wrong(SECOND, "the project is not in .*/project there; copy it to the same path"),),
    ),
    "no environment": Mistake(
        second_does("mv project/.venv kept", "mv kept project/.venv"),
        (Wrong(SECOND, r"there is no .*/\.venv/bin/python; make env there"),),
    ),
    "a firewall that lets ssh alone pass": Mistake(
        # The table of the host's own addresses comes after, so that the rule is obeyed.
        second_does(f"ip rule add pref 1 lookup local; {DROP}; ip rule del pref 0 lookup local",
                    f"ip rule add pref 0 lookup local; {KEEP}; ip rule del pref 1 lookup local"),
        (
            Wrong(FIRST, r"a port of it is not reached from 10\.77\.0\.2 \(timed out\); .*wall"),
            Wrong(SECOND, r"a port of it is not reached from 10\.77\.0\.1 \(timed out\); .*wall"),
        ),
    ),
    "a firewall in one direction": Mistake(
        one_way,
        (Wrong(SECOND, r"a port of it is not reached from 10\.77\.0\.1 \(timed out\); .*wall"),),
        variables=(("NIC", "eth1"),),
    ),
    "no such interface there": Mistake(
        second_does("ip link set eth1 down; ip link set eth1 name eth5",
                    "ip link set eth5 name eth1; ip link set eth1 up"),
        (Wrong(SECOND, "it has no interface eth1 with an IPv4 address; .*it has lo, eth0, eth5"),),
        variables=(("NIC", "eth1"),),
    ),
    "the same address twice": Mistake(
        bridge,
        (Wrong(SECOND, r"its interface br-0123 has the address 172\.18\.0\.1, as .*NIC=eth1"),),
    ),
    "a slow link": Mistake(
        second_does("tc qdisc add dev eth0 root tbf rate 80mbit burst 32kb latency 400ms",
                    "tc qdisc del dev eth0 root"),
        (Wrong(SECOND, r"it sends (\d|1\d)(\.\d+)? MB/s to 10\.77\.0\.1, and 50 are expected; "),),
    ),
    "a name for 127.0.1.1": Mistake(
        name_is_loopback,
        (Wrong(SECOND, r"its name host2 stands for 127\.0\.1\.1, .*/etc/hosts"),),
    ),
    "the same name twice": Mistake(
        second_does("hostname host1", "hostname host2"),
        (
            Wrong(SECOND, r"its hostname is host1, as that of 10\.77\.0\.1: .*set-hostname"),
            Wrong(SECOND, r"its name host1 stands for 10\.77\.0\.1, which is no address of it"),
        ),
    ),
    "a disk that is nearly full": Mistake(
        second_does("mkdir project/models; mount -t tmpfs -o size=10m tmpfs project/models",
                    "umount project/models; rmdir project/models"),
        (Wrong(SECOND, "10 MiB are free on the disk of --models-root"),),
    ),
    "a disk that cannot be written": Mistake(
        second_does("mkdir project/models; mount -t tmpfs -o ro tmpfs project/models",
                    "umount project/models; rmdir project/models"),
        (Wrong(SECOND, "--models-root cannot be used .*/models cannot be written"),),
    ),
    "more ranks than processors": Mistake(
        lambda _: nullcontext(),
        (Wrong(SECOND, f"{processors.available() + 1} ranks would share .* processors; "),),
        ("-H", f"{FIRST}:1,{SECOND}:{processors.available() + 1}"),
    ),
    "few open files": Mistake(
        few_files, (Wrong(SECOND, r"a process may open 256 files \(ulimit -n\); .*limits.conf"),)
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        # A user who has logged in from elsewhere.
        (("-H", BOTH), {"SSH_CONNECTION": "192.0.2.1 5 192.0.2.2 22"}),
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
    result = cluster.check("-H", BOTH, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["findings"] == [] and list(found["facts"]) == [FIRST, SECOND]
    assert len(found["pairs"]) == 2 and found["facts"][SECOND]["hostname"] == "host2"


def test_nothing_is_left_on_the_hosts(cluster: Cluster) -> None:
    before = {host.name: len(host.processes()) for host in cluster.two.all}
    assert cluster.check().returncode == 0
    assert {host.name: len(host.processes()) for host in cluster.two.all} == before


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found_and_no_other(cluster: Cluster, name: str) -> None:
    mistake = MISTAKES[name]
    assert_found(cluster, mistake)
