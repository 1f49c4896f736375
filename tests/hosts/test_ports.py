"""Who listens while ranks on two hosts train: the table and the ports of docs/security.md."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tests.support.hosts import TwoHosts
from tests.support.listeners import listeners
from tests.support.security_page import HOSTS, ONE_HOST, table

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
NAMES = "host1:1,host2:1"
_LOOK_SECONDS = 0.2
LAUNCHERS = {
    "run.sh": ("bash", "run.sh"),
    "mpirun": ("mpirun", "-np", "2"),
    "horovodrun": ("horovodrun", "--mpi", "-np", "2"),
    "horovodrun --gloo": ("horovodrun", "--gloo", "-np", "2"),
}
Found = dict[str, set[tuple[str, int]]]
"""Addresses and ports by process."""


def role(pid: int) -> str:
    """The process's name in the table; empty for the ssh server."""
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return ""
    names = {Path(word).name.removesuffix(".py") for word in words}
    if any(word.startswith("sshd") for word in (*names, *words)):
        return ""
    if "horovod.runner.task_fn" in words:
        return "horovodrun"
    found = [name for name in ("mpirun", "orted", "horovodrun") if name in names]
    return found[0] if found else "rank" if "train" in names else " ".join(words)


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


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_processes_listen_where_the_page_says(two, tmp_path, launcher: str) -> None:
    said = table(HOSTS)[launcher]
    found = train(two, tmp_path / "both", launcher, NAMES, NIC="eth0")
    assert {name for one in found for name in one} == said.keys()
    for host, one in zip(two.all, map(addresses, found)):
        for name, at in one.items():
            assert at == (said[name] or {host.address}), name
    # A job on one host is reached from no other.
    first, second = train(two, tmp_path / "one", launcher, "host1:2")
    said = {name: at for name, at in table(ONE_HOST)[launcher].items() if at}
    assert {**said, **addresses(first)} == said and not second
    # Gloo's ranks listen for the moment in which they connect.
    assert said.keys() - first.keys() <= ({"rank"} if "--gloo" in launcher else set())


def test_mpirun_keeps_to_the_ports_that_the_document_pins(two, tmp_path) -> None:
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^export (OMPI_MCA_\w+)=(\S+)$", text, re.MULTILINE))
    assert len(pinned) == 6
    for found in train(two, tmp_path, "mpirun", NAMES, **pinned):
        for name, at in found.items():
            ports = {port for address, port in at if address != "127.0.0.1"}
            assert ports <= set(range(41000, 41100) if name == "rank" else range(42000, 42008))
            assert ports and (name == "rank" or {42000, 42004} <= ports)


def test_gloo_takes_ports_of_the_system(two, tmp_path) -> None:
    choice = "net.ipv4.ip_local_port_range"
    for host in two.all:
        subprocess.run(host.inside("sysctl", "-qw", f"{choice}=43000 43999"), check=True)
    try:
        found = train(two, tmp_path, "horovodrun --gloo", NAMES, NIC="eth0")
    finally:
        for host in two.all:
            subprocess.run(host.inside("sysctl", "-qw", f"{choice}=32768 60999"), check=True)
    ports = {port for one in found for at in one.values() for _, port in at}
    assert ports and ports <= set(range(43000, 44000))
