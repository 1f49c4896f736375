"""Every command of the README on two hosts, with the environment active or not, by address or name.

A shell that ssh starts on the second host knows nothing of the environment. The ranks there have to
compute what two ranks on one host compute, bit for bit.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import hosts
from tests.support.hosts import INTERFACES, TwoHosts

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
ADDRESSES, NAMES = "10.77.0.1:1,10.77.0.2:1", "host1:1,host2:1"
# What activate does.
ACTIVE = {"VIRTUAL_ENV": sys.prefix}
OPTIONS = "--dataset synthetic --debug --network tiny --batch-size 8 --max-update 3".split()
IMAGES = "--dataset synthetic --num-examples 64 --batch-size 8 --epochs 1".split()
# As InsightFace's run.sh has them.
FLAGS = (
    "-bind-to none -map-by slot -mca pml ob1 -mca btl ^openib -mca btl_tcp_if_include eth0 "
    "-x OMP_NUM_THREADS=1"
).split()
CONFIG = ("bash", "config.sh", "--debug")
SHOW = "echo $(hostname) $CUDA_VISIBLE_DEVICES $NCCL_SOCKET_IFNAME $(command -v python)"

WHY_NOT = hosts.missing()
pytestmark = [pytest.mark.hosts, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


def launcher(name: str, active: bool) -> str:
    """As it is typed."""
    return name if active else str(PROGRAMS / name)


def train(
    two: TwoHosts, models: Path, *command: str, active: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run three updates; what config.sh does not take from its variables is in the command."""
    choices = {"NETWORK": "tiny", "BATCH_SIZE": "8", "MAX_UPDATE": "3", "MODELS_ROOT": str(models)}
    result = two.run(
        *command, folder=ROOT, path=[PROGRAMS] if active else [], OMP_NUM_THREADS="1",
        **choices, **(ACTIVE if active else {}), **variables,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def results(models: Path) -> dict[str, bytes]:
    """The exported weights, at the end and at their best, and the arrays of both ranks."""
    found = [*models.glob("*.params"), *models.glob("checkpoints/*/rank-*.bin")]
    assert len(found) == 4, found
    return {path.name: path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def one_host(two: TwoHosts, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What two ranks on one host compute; the first process compiles, and may round differently."""
    folder = tmp_path_factory.mktemp("one")
    for name in ("compiled", "loaded"):
        train(two, folder / name, "bash", "run.sh", "--debug", NP="2")
    return results(folder / "loaded")


@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize("names", [ADDRESSES, NAMES])
@pytest.mark.parametrize("controller", [(), ("--gloo",)], ids=["mpi", "gloo"])
def test_horovodrun(two, one_host, tmp_path, active, names, controller) -> None:
    command = (launcher("horovodrun", active), *controller, "-np", "2", "-H", names, *CONFIG)
    train(two, tmp_path, *command, active=active)
    assert results(tmp_path) == one_host


@pytest.mark.parametrize(("active", "names"), [(True, ADDRESSES), (False, NAMES)])
def test_run_sh(two, one_host, tmp_path, active, names) -> None:
    train(two, tmp_path, "bash", "run.sh", "--debug", active=active, HOSTS=names)
    assert results(tmp_path) == one_host


def test_a_project_behind_a_link(two, one_host, tmp_path) -> None:
    """Open MPI's ranks on the other host waited for themselves, three times of three."""
    link = tmp_path / "link"
    link.symlink_to(Path(sys.prefix).parent)
    models, programs = tmp_path / "models", link / Path(sys.prefix).name / "bin"
    command = (
        programs / "mpirun",
        "-np",
        "2",
        "-H",
        NAMES,
        *FLAGS,
        programs / "python",
        "train.py",
    )
    train(two, models, *command, *OPTIONS, "--models-root", str(models), active=False)
    assert results(models) == one_host


def test_run_sh_with_a_hostfile(two, one_host, tmp_path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("host1 slots=1\nhost2 slots=1\n")
    train(two, tmp_path / "models", "bash", "run.sh", "--debug", HOSTFILE=str(hostfile))
    assert results(tmp_path / "models") == one_host


@pytest.mark.parametrize(("active", "names"), [(True, ADDRESSES), (False, NAMES)])
def test_mpirun_train(two, one_host, tmp_path, active, names) -> None:
    command = (launcher("mpirun", active), "-np", "2", "-H", names, *FLAGS)
    options = (*OPTIONS, "--models-root", str(tmp_path))
    train(two, tmp_path, *command, "python", "train.py", *options, active=active)
    assert results(tmp_path) == one_host


@pytest.mark.parametrize(("active", "names"), [(True, ADDRESSES), (False, NAMES)])
def test_mpirun_classify(two, tmp_path, active, names) -> None:
    program = ("python", "classify.py", *IMAGES, "--models-root")
    for folder, hosts_of_ranks in (("one", "localhost:2"), ("two", names)):
        command = (launcher("mpirun", active), "-np", "2", "-H", hosts_of_ranks, *FLAGS)
        train(two, tmp_path, *command, *program, str(tmp_path / folder), active=active)
    one, both = ({path.name: path.read_bytes() for path in (tmp_path / folder).glob("*.params")}
                 for folder in ("one", "two"))  # fmt: skip
    assert one and one == both


@pytest.mark.parametrize(
    "command", [("mpirun",), ("horovodrun",), ("horovodrun", "--gloo")], ids=" ".join
)
def test_every_rank_gets_gpus_interface_and_environment(two, tmp_path, command) -> None:
    script = tmp_path / "show.sh"
    script.write_text(SHOW)
    choices = {"CUDA_VISIBLE_DEVICES": "2,3", "NIC": "eth1"}
    words = (launcher(command[0], False), *command[1:], "-np", "2", "-H", NAMES, "sh", str(script))
    result = train(two, tmp_path, *words, active=False, **choices)
    for host in two.all:
        assert f"{host.name} 2,3 eth1 {PROGRAMS / 'python'}\n" in result.stdout


@pytest.fixture
def named_on(two: TwoHosts) -> Iterator[Callable[[str], None]]:
    """Lets the hosts' names stand for their addresses on an interface."""
    yield two.name_on
    two.name_on(INTERFACES[0])


@pytest.mark.parametrize("chosen", INTERFACES)
@pytest.mark.parametrize(
    "command", [("mpirun",), ("horovodrun",), ("horovodrun", "--gloo")], ids=" ".join
)
def test_messages_take_the_chosen_interface_alone(two, tmp_path, named_on, command, chosen) -> None:
    (other,) = set(INTERFACES) - {chosen}
    if "--gloo" in command:
        named_on(chosen)
    before = {name: two.first.bytes_sent(name) for name in INTERFACES}
    train(two, tmp_path, *command, "-np", "2", "-H", ADDRESSES, *CONFIG, NIC=chosen)
    sent = {name: two.first.bytes_sent(name) - before[name] for name in INTERFACES}
    # Three updates send 13 MB; the hosts' addresses, which ssh takes, are on the first interface.
    assert sent[chosen] > 5_000_000 and sent[other] < 100_000


def test_gloo_refuses_an_interface_that_the_hosts_names_are_not_on(two) -> None:
    command = ("horovodrun", "--gloo", "-np", "2", "-H", ADDRESSES, *CONFIG)
    result = two.run(*command, folder=ROOT, path=[PROGRAMS], NIC="eth1")
    assert result.returncode == 1
    assert "error: NIC=eth1: Gloo takes the address of the host's name host1, 10.77.0.1, which" in (
        result.stderr
    )
    assert "Traceback" not in result.stderr


def test_without_a_choice_open_mpi_takes_all_interfaces(two, tmp_path) -> None:
    before = {name: two.first.bytes_sent(name) for name in INTERFACES}
    train(two, tmp_path, "mpirun", "-np", "2", "-H", ADDRESSES, *CONFIG)
    assert all(two.first.bytes_sent(name) - before[name] > 1_000_000 for name in INTERFACES)


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


@pytest.mark.parametrize("command", [("horovodrun",), ("horovodrun", "--gloo"), ("mpirun",)])
def test_a_host_that_ssh_does_not_reach_is_named(two, command) -> None:
    words = (*command, "-np", "2", "-H", "10.77.0.1:1,10.77.0.9:1", "true")
    result = two.run(*words, folder=ROOT, path=[PROGRAMS], HOST_TIMEOUT="10")
    assert result.returncode == 2
    assert result.stderr.startswith("error: host 10.77.0.9: no connection by ssh (")
    assert len(result.stderr.splitlines()) == 1
