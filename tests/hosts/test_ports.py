"""Ports that listen while two hosts train, and arguments that all users of the hosts can read."""

import base64
import os
import re
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.hosts import MARKS, NAMES, PROGRAMS, ROOT, TwoHosts, repeated
from tests.support.listeners import listeners
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
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "Hx7c0a1f9e", "WANDB_API_KEY": "Wq2b8d3c55", "MXNET_KEPT": "Mz9e4f6071"
}  # fmt: skip
SHOW = "echo $(hostname) $MXNET_KEPT $WANDB_API_KEY $CUDA_VISIBLE_DEVICES $NCCL_SOCKET_IFNAME "
SHOW += "$(command -v python); sleep 1"
SHOWN = ("-np", "2", "-H", NAMES, "sh", "-c", SHOW)
SERVERS = (
    "parallel.launch -n 2 -s 1 -H hosts -i eth0 --launcher ssh -- python classify.py --kv-store "
    "dist_async --dataset synthetic --image-size 16 --num-images 64 --batch-size 16 --epochs 1"
).split()


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




def objects(text: bytes) -> list[bytes]:
    """Return the objects of Horovod that a text has in base64, each as it is pickled."""
    words = (word.rstrip(b"=") for word in re.findall(rb"[A-Za-z0-9+/]{80,}={0,2}", text))
    decoded = (base64.b64decode(word[: len(word) - (len(word) % 4 == 1)] + b"==") for word in words)
    return [one for one in decoded if b"horovod" in one]


@pytest.mark.parametrize(("words", "process"), [
    (("mpirun", *SHOWN), b"orted"),
    (("horovodrun", "--mpi", *SHOWN), b"orted"),
    (("horovodrun", "--gloo", *SHOWN), b"remote-guard"),
    (("python", "-m", *SERVERS), b"parallel.launch.guard"),
    (("python", "-m", "parallel.check", "-H", NAMES), b"parallel.check.probe"),
], ids=["mpirun", "mpi", "gloo", "launch", "check"])  # fmt: skip
def test_no_argument_has_a_key_or_a_value(two, project, tmp_path, words, process: bytes) -> None:
    (project / "hosts").write_text("host1\nhost2\n")
    own = {"VIRTUAL_ENV": sys.prefix, "OMP_NUM_THREADS": "1", "NIC": "eth0", **SECRETS}
    if SHOW in words:
        own["CUDA_VISIBLE_DEVICES"] = "2,3"
    if "parallel.launch" in words:
        folder, words = project, (*words, "--models-root", str(tmp_path))
    else:
        folder, own["SEND_VARIABLES"] = ROOT, "WANDB_API_KEY"
    seen: set[bytes] = set()

    def look() -> None:
        for name in filter(str.isdecimal, set(os.listdir("/proc")) - {str(os.getpid())}):
            with suppress(OSError):
                seen.add(Path("/proc", name, "cmdline").read_bytes())

    with repeated(look, 0.005):
        path = (ROOT / "setup-utils/launchers", PROGRAMS)
        said = two.run(*words, folder=folder, path=path, **own)
    if SHOW in words:
        for host in two.all:
            shown = f"{host.name} Mz9e4f6071 Wq2b8d3c55 2,3 eth0 {PROGRAMS / 'python'}\n"
            assert shown in said.stdout, said
    assert "Traceback" not in said.stderr and (said.returncode == 0 or "check" in words[2])
    assert all(any(word in one for one in seen) for word in (b"sshd", process))
    secrets = [secret.encode() for secret in SECRETS.values()]
    assert [one for one in seen if objects(one) or any(word in one for word in secrets)] == []
