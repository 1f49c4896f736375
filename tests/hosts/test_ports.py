"""Who listens while ranks on two hosts train: the table and the ports of docs/security.md."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tests.support import hosts
from tests.support.hosts import TwoHosts
from tests.support.listeners import listeners
from tests.support.security_page import HOSTS, table

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
_LOOK_SECONDS = 0.2
# As in docs/security.md: variables, and every port that is open then.
PINNED = {
    "OMPI_MCA_btl_tcp_port_min_v4": "41000", "OMPI_MCA_btl_tcp_port_range_v4": "100",
    "OMPI_MCA_btl_tcp_port_min_v6": "41000", "OMPI_MCA_btl_tcp_port_range_v6": "100",
    "OMPI_MCA_oob_tcp_dynamic_ipv4_ports": "42000-42003",
    "OMPI_MCA_oob_tcp_dynamic_ipv6_ports": "42004-42007",
}  # fmt: skip
RANKS_PORTS, DAEMONS_PORTS = range(41000, 41100), range(42000, 42008)
LAUNCHERS = {
    "run.sh": ("bash", "run.sh"),
    "mpirun": ("mpirun", "-np", "2"),
    "horovodrun": ("horovodrun", "--mpi", "-np", "2"),
    "horovodrun --gloo": ("horovodrun", "--gloo", "-np", "2"),
}
Found = dict[str, set[tuple[str, int]]]
"""Addresses and ports by process."""

WHY_NOT = hosts.missing()
pytestmark = [pytest.mark.hosts, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


def role(pid: int) -> str:
    """The process's name in the table; empty for the ssh server."""
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return ""
    names = {Path(word).name for word in words}
    if names & {"sshd"} or any(word.startswith("sshd:") for word in words):
        return ""
    if "horovod.runner.task_fn" in words:
        return "horovodrun"
    for name in ("mpirun", "orted", "horovodrun"):
        if names & {name, f"{name}.py"}:
            return name
    return "rank" if names & {"train.py"} else " ".join(words)


def train(two: TwoHosts, models: Path, launcher: str, names: str, **variables: str) -> list[Found]:
    """Train for some updates; return who has listened meanwhile, on each host."""
    seen: list[Found] = [{}, {}]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOK_SECONDS):
            for found, host in zip(seen, two.all):
                for pid in host.processes():
                    if at := listeners(pid):
                        found.setdefault(role(pid), set()).update(at)

    words = LAUNCHERS[launcher]
    if launcher == "run.sh":
        variables["HOSTS"] = names
    else:
        words = (*words, "-H", names, "bash", "config.sh")
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        result = two.run(
            *words, "--debug",
            folder=ROOT, path=[PROGRAMS], OMP_NUM_THREADS="1", VIRTUAL_ENV=sys.prefix,
            NETWORK="tiny", BATCH_SIZE="4", MAX_UPDATE="3", MODELS_ROOT=str(models), **variables,
        )  # fmt: skip
    finally:
        is_over.set()
        watching.join()
    assert result.returncode == 0, result.stdout + result.stderr
    for found in seen:
        found.pop("", None)
    return seen


def addresses(found: Found) -> dict[str, set[str]]:
    return {name: {address for address, _ in at} for name, at in found.items()}


def system_ports(two: TwoHosts, first: int, last: int) -> None:
    for host in two.all:
        setting = f"net.ipv4.ip_local_port_range={first} {last}"
        subprocess.run(host.inside("sysctl", "-qw", setting), check=True)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_processes_listen_where_the_page_says(two, tmp_path, launcher: str) -> None:
    """Gloo at ports of the system, Open MPI at those that are pinned."""
    said = table(HOSTS)[launcher]
    pinned = PINNED if launcher == "mpirun" else {}
    system_ports(two, 43000, 43999)
    try:
        found = train(two, tmp_path, launcher, "host1:1,host2:1", NIC="eth0", **pinned)
    finally:
        system_ports(two, 32768, 60999)
    assert {name for one in found for name in one} == said.keys()
    for host, one in zip(two.all, found):
        for name, at in addresses(one).items():
            assert at == (said[name] or {host.address}), name
        for name, places in one.items():
            ports = {port for address, port in places if address != "127.0.0.1"}
            if launcher == "mpirun":
                assert ports and ports <= set(RANKS_PORTS if name == "rank" else DAEMONS_PORTS)
                assert name == "rank" or 42000 in ports
            elif "--gloo" in launcher:
                assert ports <= set(range(43000, 44000))


def test_the_document_pins_these() -> None:
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^export (OMPI_MCA_\w+)=(\S+)$", text, re.MULTILINE)) == PINNED
