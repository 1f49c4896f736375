"""Commands of the README on two hosts compute what two ranks on one compute, bit for bit.

A shell that ssh starts on the second host knows nothing of the environment.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import hosts
from tests.support.hosts import ADDRESSES, INTERFACES, NAMES, PROGRAMS, ROOT, TwoHosts

pytestmark = hosts.MARKS
CONFIG, RUN = ("bash", "config.sh", "--debug"), ("bash", "run.sh", "--debug")
LAUNCHERS = [("mpirun",), ("horovodrun",), ("horovodrun", "--gloo")]
FLAGS = (*hosts.MPI_FLAGS, "-x", "OMP_NUM_THREADS=1")
OPTIONS = "--dataset synthetic --debug --network tiny --batch-size 8 --max-update 3".split()


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
@pytest.mark.parametrize("launcher", ["run.sh", "mpirun", "horovodrun", "horovodrun --gloo"])
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


@pytest.mark.parametrize("command", LAUNCHERS, ids=" ".join)
def test_messages_take_the_chosen_interface_alone(two, tmp_path, command) -> None:
    def sent(**variables: Any) -> list[int]:
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


@pytest.mark.parametrize("controller", [None, "--mpi", "--gloo"])
def test_hosts_with_docker_find_each_other(two, one_host, tmp_path, controller) -> None:
    added = ("link add docker0 type bridge", "addr add 172.17.0.1/16 dev docker0",
             "link set docker0 up")  # fmt: skip
    for host in two.all:
        for words in added:
            host.ip(*words.split())
    try:
        command = ("horovodrun", controller, "-np", "2", "-H", ADDRESSES, *CONFIG)
        train(two, tmp_path, *(command if controller else RUN), HOSTS=NAMES)
    finally:
        for host in two.all:
            host.ip("link", "del", "docker0")
    assert results(tmp_path) == one_host


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
