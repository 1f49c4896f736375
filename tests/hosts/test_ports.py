"""Who listens while ranks on two hosts train, with the ports that docs/reliability.md pins."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support import hosts
from tests.support.hosts import Host, TwoHosts

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
SSH = 22
_LOOK_SECONDS = 0.2
# As in docs/reliability.md: variables, and every port that is open then.
PINNED = {
    "OMPI_MCA_btl_tcp_port_min_v4": "41000", "OMPI_MCA_btl_tcp_port_range_v4": "100",
    "OMPI_MCA_btl_tcp_port_min_v6": "41000", "OMPI_MCA_btl_tcp_port_range_v6": "100",
    "OMPI_MCA_oob_tcp_dynamic_ipv4_ports": "42000-42003",
    "OMPI_MCA_oob_tcp_dynamic_ipv6_ports": "42004-42007",
}  # fmt: skip
OPEN = {SSH, *range(41000, 41100), *range(42000, 42008)}

WHY_NOT = hosts.missing()
pytestmark = [pytest.mark.hosts, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


def listening(host: Host) -> set[tuple[str, int]]:
    """Addresses and ports, but for those that other hosts do not reach."""
    found = subprocess.check_output(host.inside("ss", "-ltnH"), text=True)
    pairs = [line.split()[3].rsplit(":", 1) for line in found.splitlines()]
    return {(address, int(port)) for address, port in pairs if not address.startswith("127.")}


def train(
    two: TwoHosts, models: Path, *command: str, **variables: str
) -> list[set[tuple[str, int]]]:
    """Train for some updates; return who has listened meanwhile, on each host."""
    seen: list[set[tuple[str, int]]] = [set(), set()]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOK_SECONDS):
            for found, host in zip(seen, two.all):
                found |= listening(host)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        result = two.run(
            *command, "-np", "2", "-H", "host1:1,host2:1", "bash", "config.sh", "--debug",
            folder=ROOT, path=[PROGRAMS], OMP_NUM_THREADS="1", VIRTUAL_ENV=sys.prefix,
            NETWORK="tiny", BATCH_SIZE="4", MAX_UPDATE="3", MODELS_ROOT=str(models), **variables,
        )  # fmt: skip
    finally:
        is_over.set()
        watching.join()
    assert result.returncode == 0, result.stdout + result.stderr
    return seen


def test_mpirun_keeps_to_the_ports_that_are_pinned(two, tmp_path) -> None:
    for found in train(two, tmp_path, "mpirun", **PINNED):
        ports = {port for _, port in found}
        assert ports <= OPEN
        # A rank and a daemon, each on both families of addresses.
        assert len(ports & set(range(41000, 41100))) >= 1
        assert {42000, 42004} <= ports


def test_gloo_takes_ports_of_the_system(two, tmp_path) -> None:
    for host in two.all:
        subprocess.run(
            host.inside("sysctl", "-qw", "net.ipv4.ip_local_port_range=43000 43999"), check=True
        )
    try:
        first, second = train(two, tmp_path, "horovodrun", "--gloo")
    finally:
        for host in two.all:
            subprocess.run(
                host.inside("sysctl", "-qw", "net.ipv4.ip_local_port_range=32768 60999"), check=True
            )
    # The ranks listen on the address of the host's name, horovodrun on all, anywhere.
    ranks = [
        {port for address, port in found if address == host.address} - {SSH}
        for found, host in zip((first, second), two.all)
    ]
    assert ranks[0] | ranks[1] <= set(range(43000, 44000)) and ranks[0] | ranks[1]
    assert any(address == "0.0.0.0" for address, _ in first)


def test_the_document_pins_these(two) -> None:
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^export (OMPI_MCA_\w+)=(\S+)$", text, re.MULTILINE)) == PINNED
