"""Who listens while ranks on two hosts train: the table and the ports of docs/security.md."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from tests.support.hosts import MARKS, NAMES, ROOT, TwoHosts, repeated
from tests.support.processes import listeners
from tests.support.security_page import HOSTS, role, table

pytestmark = MARKS
_PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
PINNED = dict(re.findall(r"^export (OMPI_MCA_\w+)=(\S+)$", _PAGE, re.MULTILINE))
# Every port that is open with these variables; those of the system while a test runs.
RANKS_PORTS, DAEMONS_PORTS = range(41000, 41100), range(42000, 42008)
SYSTEM_PORTS = range(43000, 44000)
RANKS = ("-np", "2", "-H", NAMES, "bash", "config.sh")
LAUNCHERS = {
    "run.sh": ("bash", "run.sh"),
    "mpirun": ("mpirun", *RANKS),
    "horovodrun": ("horovodrun", "--mpi", *RANKS),
    "horovodrun --gloo": ("horovodrun", "--gloo", *RANKS),
}


def set_system_ports(two: TwoHosts, first: int, last: int) -> None:
    for host in two.all:
        host.sh(f"sysctl -qw 'net.ipv4.ip_local_port_range={first} {last}'")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_processes_listen_where_the_page_says(two, tmp_path, launcher: str) -> None:
    """Gloo at ports of the system, Open MPI at those that the page pins."""
    said = table(HOSTS)[launcher]
    found: list[dict[str, set[tuple[str, int]]]] = [defaultdict(set), defaultdict(set)]

    def look() -> None:
        for seen, host in zip(found, two.all):
            for process, words in host.running():
                name, places = role(words, {}), listeners(process.pid)
                if name and places:
                    seen[name].update(places)

    pinned = PINNED if launcher == "mpirun" else {}
    command = (*LAUNCHERS[launcher], "--debug")
    set_system_ports(two, SYSTEM_PORTS[0], SYSTEM_PORTS[-1])
    try:
        with repeated(look, 0.2):
            result = two.train(tmp_path, *command, HOSTS=NAMES, NIC="eth0", **pinned)
    finally:
        set_system_ports(two, 32768, 60999)
    assert result.returncode == 0, result.stdout + result.stderr
    assert {name for one in found for name in one} == said.keys()
    for host, one in zip(two.all, found):
        for name, places in one.items():
            assert {address for address, _ in places} == (said[name] or {host.address}), name
            ports = {port for address, port in places if address != "127.0.0.1"}
            if launcher == "mpirun":
                assert ports and ports <= set(RANKS_PORTS if name == "rank" else DAEMONS_PORTS)
                assert name == "rank" or 42000 in ports
            elif "--gloo" in launcher:
                assert ports <= set(SYSTEM_PORTS)
