"""Every command of the README on two hosts, with the environment active or not, by address or name.

A shell that ssh starts on the second host knows nothing of the environment. The ranks there have to
compute what two ranks on one host compute, bit for bit.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import hosts
from tests.support.hosts import INTERFACES, TwoHosts

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
ADDRESSES, NAMES = "10.77.0.1:1,10.77.0.2:1", "host1:1,host2:1"
OPTIONS = "--dataset synthetic --debug --network tiny --batch-size 8 --max-update 3".split()
IMAGES = "--dataset synthetic --num-examples 64 --batch-size 8 --epochs 1".split()
# As InsightFace's run.sh has them.
FLAGS = (
    "-bind-to none -map-by slot -mca pml ob1 -mca btl ^openib -mca btl_tcp_if_include eth0 "
    "-x OMP_NUM_THREADS=1"
).split()
CONFIG = ("bash", "config.sh", "--debug")
SHOW = "echo $(hostname) $CUDA_VISIBLE_DEVICES $NCCL_SOCKET_IFNAME $(command -v python)"
LAUNCHERS = [("mpirun",), ("horovodrun",), ("horovodrun", "--gloo")]

WHY_NOT = hosts.missing()
pytestmark = [pytest.mark.hosts, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


def train(
    two: TwoHosts, models: Path, *command: str, active: object = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run three updates; what config.sh does not take from its variables is in the command."""
    choices = {"NETWORK": "tiny", "BATCH_SIZE": "8", "MAX_UPDATE": "3", "MODELS_ROOT": str(models)}
    if active:
        choices["VIRTUAL_ENV"] = sys.prefix
    elif command[0] != "bash":
        command = (str(PROGRAMS / command[0]), *command[1:])
    result = two.run(
        *command, folder=ROOT, path=[PROGRAMS] if active else [], OMP_NUM_THREADS="1",
        **choices, **variables,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result


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
        train(two, folder / name, "bash", "run.sh", "--debug", NP="2")
    return results(folder / "loaded")


@pytest.mark.parametrize(("active", "names"), [(True, ADDRESSES), (False, NAMES)])
@pytest.mark.parametrize("launcher", ["run.sh", "mpirun", "horovodrun", "horovodrun --gloo"])
def test_two_hosts_compute_what_one_does(two, one_host, tmp_path, launcher, active, names) -> None:
    command = (*launcher.split(), "-np", "2", "-H", names)
    if launcher == "run.sh":
        train(two, tmp_path, "bash", "run.sh", "--debug", active=active, HOSTS=names)
    elif launcher == "mpirun":
        options = ("python", "train.py", *OPTIONS, "--models-root", str(tmp_path))
        train(two, tmp_path, *command, *FLAGS, *options, active=active)
    else:
        train(two, tmp_path, *command, *CONFIG, active=active)
    assert results(tmp_path) == one_host


def test_a_project_behind_a_link_and_a_hostfile(two, one_host, tmp_path) -> None:
    """Open MPI's ranks on the other host waited for themselves, three times of three."""
    (tmp_path / "link").symlink_to(Path(sys.prefix).parent)
    hostfile, models = tmp_path / "hosts", tmp_path / "models"
    hostfile.write_text("host1 slots=1\nhost2 slots=1\n")
    programs = tmp_path / "link" / Path(sys.prefix).name / "bin"
    command = (f"{programs}/mpirun", "-np", "2", "-hostfile", str(hostfile), *FLAGS)
    options = (f"{programs}/python", "train.py", *OPTIONS, "--models-root", str(models))
    train(two, models, *command, *options, active=False)
    assert results(models) == one_host


def test_classifiers(two, tmp_path) -> None:
    for folder, hosts_of_ranks in (("one", "localhost:2"), ("two", NAMES)):
        command = ("mpirun", "-np", "2", "-H", hosts_of_ranks, *FLAGS, "python", "classify.py")
        train(two, tmp_path, *command, *IMAGES, "--models-root", str(tmp_path / folder))
    one, both = ({path.name: path.read_bytes() for path in (tmp_path / folder).glob("*.params")}
                 for folder in ("one", "two"))  # fmt: skip
    assert one and one == both


@pytest.mark.parametrize("command", LAUNCHERS, ids=" ".join)
def test_every_rank_gets_gpus_interface_and_environment(two, tmp_path, command) -> None:
    script = tmp_path / "show.sh"
    script.write_text(SHOW)
    words = (*command, "-np", "2", "-H", NAMES, "sh", str(script))
    result = train(two, tmp_path, *words, active=False, CUDA_VISIBLE_DEVICES="2,3", NIC="eth1")
    for host in two.all:
        assert f"{host.name} 2,3 eth1 {PROGRAMS / 'python'}\n" in result.stdout


def sent_by(two: TwoHosts, models: Path, *command: str, **variables: str) -> dict[str, int]:
    """Train, and return the bytes that have left the first host on each interface."""
    before = {name: two.first.bytes_sent(name) for name in INTERFACES}
    train(two, models, *command, "-np", "2", "-H", ADDRESSES, *CONFIG, **variables)
    return {name: two.first.bytes_sent(name) - before[name] for name in INTERFACES}


@pytest.mark.parametrize("command", LAUNCHERS, ids=" ".join)
def test_messages_take_the_chosen_interface_alone(two, tmp_path, command) -> None:
    try:
        for chosen, other in (INTERFACES, INTERFACES[::-1]):
            if "--gloo" in command:
                two.name_on(chosen)
            sent = sent_by(two, tmp_path / chosen, *command, NIC=chosen)
            # Three updates send 13 MB; the hosts' addresses, which ssh takes, are on the first.
            assert sent[chosen] > 5_000_000 and sent[other] < 100_000
    finally:
        two.name_on(INTERFACES[0])
    if command == ("mpirun",):
        assert min(sent_by(two, tmp_path / "both", *command).values()) > 1_000_000


@pytest.fixture
def bridges(two: TwoHosts) -> Iterator[None]:
    """Docker's, of one address on all hosts."""
    for host in two.all:
        host.ip("link", "add", "docker0", "type", "bridge")
        host.ip("addr", "add", "172.17.0.1/16", "dev", "docker0")
        host.ip("link", "set", "docker0", "up")
    yield
    for host in two.all:
        host.ip("link", "del", "docker0")


@pytest.mark.parametrize("controller", [None, "--mpi", "--gloo"])
def test_hosts_with_docker_find_each_other(two, one_host, tmp_path, bridges, controller) -> None:
    command = ("horovodrun", controller, "-np", "2", "-H", ADDRESSES, *CONFIG)
    train(two, tmp_path, *(command if controller else ("bash", "run.sh", "--debug")), HOSTS=NAMES)
    assert results(tmp_path) == one_host


@pytest.mark.parametrize("command", LAUNCHERS, ids=" ".join)
def test_a_host_that_cannot_be_used_is_named(two, command) -> None:
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
