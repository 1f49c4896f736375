"""Who listens while ranks on two hosts train: the table and the ports of docs/security.md."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import psutil
import pytest

from tests.support.hosts import MARKS, NAMES, ROOT, TwoHosts
from tests.support.listeners import listeners
from tests.support.security_page import HOSTS, table

pytestmark = MARKS
_LOOK_SECONDS = 0.2
# As in docs/security.md: variables, and every port that is open then.
PINNED = {
    "OMPI_MCA_btl_tcp_port_min_v4": "41000", "OMPI_MCA_btl_tcp_port_range_v4": "100",
    "OMPI_MCA_btl_tcp_port_min_v6": "41000", "OMPI_MCA_btl_tcp_port_range_v6": "100",
    "OMPI_MCA_oob_tcp_dynamic_ipv4_ports": "42000-42003",
    "OMPI_MCA_oob_tcp_dynamic_ipv6_ports": "42004-42007",
}  # fmt: skip
RANKS_PORTS, DAEMONS_PORTS = range(41000, 41100), range(42000, 42008)
RANKS = ("-np", "2", "-H", NAMES, "bash", "config.sh")
LAUNCHERS = {
    "run.sh": ("bash", "run.sh"),
    "mpirun": ("mpirun", *RANKS),
    "horovodrun": ("horovodrun", "--mpi", *RANKS),
    "horovodrun --gloo": ("horovodrun", "--gloo", *RANKS),
}


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


def listened(two: TwoHosts, models: Path, launcher: str, **variables: str):
    """Train; return the addresses and ports at which processes have listened, on each host."""
    seen: list[dict[str, set[tuple[str, int]]]] = [{}, {}]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOK_SECONDS):
            for found, host in zip(seen, two.all):
                for pid in host.processes():
                    if at := listeners(pid):
                        found.setdefault(role(pid), set()).update(at)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        result = two.train(
            models, *LAUNCHERS[launcher], "--debug", active=True, HOSTS=NAMES, **variables
        )
    finally:
        is_over.set()
        watching.join()
    assert result.returncode == 0, result.stdout + result.stderr
    for found in seen:
        found.pop("", None)
    return seen


def system_ports(two: TwoHosts, first: int, last: int) -> None:
    for host in two.all:
        host.sh(f"sysctl -qw 'net.ipv4.ip_local_port_range={first} {last}'")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_processes_listen_where_the_page_says(two, tmp_path, launcher: str) -> None:
    """Gloo at ports of the system, Open MPI at those that are pinned."""
    said = table(HOSTS)[launcher]
    system_ports(two, 43000, 43999)
    try:
        pinned = PINNED if launcher == "mpirun" else {}
        found = listened(two, tmp_path, launcher, NIC="eth0", **pinned)
    finally:
        system_ports(two, 32768, 60999)
    assert {name for one in found for name in one} == said.keys()
    for host, one in zip(two.all, found):
        for name, places in one.items():
            assert {address for address, _ in places} == (said[name] or {host.address}), name
            ports = {port for address, port in places if address != "127.0.0.1"}
            if launcher == "mpirun":
                assert ports and ports <= set(RANKS_PORTS if name == "rank" else DAEMONS_PORTS)
                assert name == "rank" or 42000 in ports
            elif "--gloo" in launcher:
                assert ports <= set(range(43000, 44000))


def test_the_document_pins_these() -> None:
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^export (OMPI_MCA_\w+)=(\S+)$", text, re.MULTILINE)) == PINNED
