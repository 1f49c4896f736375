"""Commands of the README, planted mistakes, open ports and readable arguments on two hosts."""

import re
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.hosts import two_hosts
from tests.hosts.two_hosts import ADDRESSES, INTERFACES, NAMES, PROGRAMS, ROOT, TwoHosts, repeated
from tests.support.processes import listeners
from tests.support.security_page import HOSTS, role, table

pytestmark = two_hosts.MARKS
FIRST, SECOND = "10.77.0.1", "10.77.0.2"
BOTH = ("-H", f"{FIRST}:1,{SECOND}:1")
# A host that hangs is given up after 45 s; a busy machine needs some to start Python.
LONGEST = 90
# The kernel refuses 65535 in a rule.
DROP = "pref 0 iif eth0 ipproto tcp dport 1024-65534 blackhole"
# Scripts of the second host ($1: its own folder, $2: programs, $3: the project, $4: the ssh server)
# that begin and end a mistake, and how it is told.
MISTAKES = {
    "a process that hangs": (
        'mount -t tmpfs tmpfs "$2"; printf "#!/bin/sh\\nkill -STOP \\$\\$\\n" >"$2/python"; '
        'chmod +x "$2/python"',
        'umount -l "$2"',
        f"{SECOND}: no connection by ssh ",
    ),
    "no project": (
        'mount -t tmpfs tmpfs "$3/parallel/check"', 'umount -l "$3/parallel/check"',
        f"{SECOND}: the check does not run there ",
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
    "an ssh server that hangs": (
        'kill -STOP "$4"', 'kill -CONT "$4"', f"{SECOND}: no connection by ssh "
    ),
}  # fmt: skip
CONFIG, RUN = ("bash", "config.sh", "--debug"), ("bash", "run.sh", "--debug")
LAUNCHERS = [("mpirun",), ("horovodrun",), ("horovodrun", "--gloo")]
FLAGS = (*two_hosts.MPI_FLAGS, "-x", "OMP_NUM_THREADS=1")
OPTIONS = "--dataset synthetic --debug --network tiny --batch-size 8 --max-update 3".split()
_PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
PINNED = dict(re.findall(r"^export (OMPI_MCA_\w+)=(\S+)$", _PAGE, re.MULTILINE))
# Every port that is open with these variables; those of the system while a test runs.
RANKS_PORTS, DAEMONS_PORTS = range(41000, 41100), range(42000, 42008)
SYSTEM_PORTS = range(43000, 44000)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found_and_no_other(two: TwoHosts, private: Path, name: str) -> None:
    begins, ends, pattern = MISTAKES[name]
    places = (private, PROGRAMS, ROOT, two.second.server_pid)
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


def train(two: TwoHosts, models: Path, *command: str, active=True, **variables: str) -> None:
    result = two.train(models, *command, active=active, **variables)
    assert result.returncode == 0, result.stdout + result.stderr


def results(models: Path) -> dict[str, bytes]:
    """The exported weights (the best ones if there is a set to verify), and both ranks' arrays."""
    found = [*models.glob("*.params"), *models.glob("checkpoints/*/rank-*.bin")]
    names = {path.name for path in found}
    assert {"model-0000.params", "rank-0000.bin", "rank-0001.bin"} <= names, found
    return {path.name: path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def one_host(two: TwoHosts, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What two ranks on one host compute; the first process compiles, and may round differently."""
    folder = tmp_path_factory.mktemp("one")
    for name in ("compiled", "loaded"):
        train(two, folder / name, *RUN, NP="2")
    return results(folder / "loaded")


@pytest.mark.parametrize(("active", "names"), [(True, ADDRESSES), (False, NAMES)])
@pytest.mark.parametrize("launcher", two_hosts.LAUNCHERS)
def test_two_hosts_compute_what_one_does(two, one_host, tmp_path, launcher, active, names) -> None:
    command = (*launcher.split(), "-np", "2", "-H", names)
    if launcher == "run.sh":
        train(two, tmp_path, *RUN, active=active, HOSTS=names)
    elif launcher == "mpirun":
        options = ("python", "train.py", *OPTIONS, "--models-root", str(tmp_path))
        train(two, tmp_path, *command, *FLAGS, *options, active=active)
    else:
        train(two, tmp_path, *command, *CONFIG, active=active)
    assert results(tmp_path) == one_host


@pytest.mark.parametrize("command", LAUNCHERS, ids=" ".join)
def test_messages_take_the_chosen_interface_alone(two, tmp_path, command) -> None:
    def sent(**variables) -> list[int]:
        before = [two.first.bytes_sent(name) for name in INTERFACES]
        words = (*command, "-np", "2", "-H", ADDRESSES, *CONFIG, "--resume", "never")
        train(two, tmp_path, *words, **variables)
        return [two.first.bytes_sent(name) - old for name, old in zip(INTERFACES, before)]

    try:
        for number, chosen in enumerate(INTERFACES):
            if "--gloo" in command:
                two.name_on(chosen)
            found = sent(NIC=chosen)
            # Three updates send 13 MB; the hosts' addresses, which ssh takes, are on the first.
            assert found[number] > 5_000_000 and found[1 - number] < 100_000
    finally:
        two.name_on(INTERFACES[0])
    if command == ("mpirun",):
        assert min(sent()) > 1_000_000


@pytest.mark.parametrize("command", LAUNCHERS, ids=" ".join)
def test_a_host_that_cannot_be_used_is_named(two, tmp_path, command) -> None:
    words = (*command, "-np", "2", "-H", "10.77.0.1:1,10.77.0.9:1", "true")
    result = two.run(*words, folder=ROOT, path=[PROGRAMS], HOST_TIMEOUT="10")
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: host 10.77.0.9: no connection by ssh (")
    if "--gloo" in command:
        words = (*command, "-np", "2", "-H", ADDRESSES, *CONFIG)
        result = two.run(*words, folder=ROOT, path=[PROGRAMS], NIC="eth1")
        line = "error: NIC=eth1: Gloo takes the address of the host's name host1, 10.77.0.1, which"
        assert result.returncode == 1 and line in result.stderr
        assert "Traceback" not in result.stderr


def set_system_ports(two: TwoHosts, first: int, last: int) -> None:
    for host in two.all:
        host.sh(f"sysctl -qw 'net.ipv4.ip_local_port_range={first} {last}'")


@pytest.mark.parametrize("launcher", two_hosts.LAUNCHERS)
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
    command = (*two_hosts.LAUNCHERS[launcher], "--debug")
    set_system_ports(two, SYSTEM_PORTS[0], SYSTEM_PORTS[-1])
    try:
        with repeated(look, 0.02):
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
