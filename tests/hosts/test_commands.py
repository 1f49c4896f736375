"""Every command of the README on two hosts, with the environment active or not, by address or name.

A shell that ssh starts on the second host knows nothing of the environment. The ranks there have to
compute what two ranks on one host compute, bit for bit.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hosts import INTERFACES, TwoHosts

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
ADDRESSES, NAMES = "10.77.0.1:1,10.77.0.2:1", "host1:1,host2:1"
OPTIONS = "--dataset synthetic --debug --network tiny --batch-size 8 --max-update 3".split()
# As InsightFace's run.sh has them.
FLAGS = (
    "-bind-to none -map-by slot -mca pml ob1 -mca btl ^openib -mca btl_tcp_if_include eth0 "
    "-x OMP_NUM_THREADS=1"
).split()
CONFIG = ("bash", "config.sh", "--debug")
RUN = ("bash", "run.sh", "--debug")
SHOW = "echo $(hostname) $CUDA_VISIBLE_DEVICES $NCCL_SOCKET_IFNAME $(command -v python)"

each_launcher = pytest.mark.parametrize(
    "command", [("mpirun",), ("horovodrun",), ("horovodrun", "--gloo")], ids=" ".join
)
by_address_or_name = pytest.mark.parametrize(
    ("active", "names"), [(True, ADDRESSES), (False, NAMES)]
)


def train(
    two: TwoHosts, models: Path, program: object, *words: str, active: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run three updates; without an active environment, programs are typed with their folder."""
    choices = {"NETWORK": "tiny", "BATCH_SIZE": "8", "MAX_UPDATE": "3", "MODELS_ROOT": str(models)}
    if active:
        choices["VIRTUAL_ENV"] = sys.prefix
    elif program != "bash":
        program = PROGRAMS / str(program)
    result = two.run(
        program, *words, folder=ROOT, path=[PROGRAMS] if active else [], OMP_NUM_THREADS="1",
        **choices, **variables,
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
        train(two, folder / name, *RUN, NP="2")
    return results(folder / "loaded")


@by_address_or_name
@pytest.mark.parametrize("controller", [(), ("--gloo",)], ids=["mpi", "gloo"])
def test_horovodrun(two, one_host, tmp_path, active, names, controller) -> None:
    words = ("horovodrun", *controller, "-np", "2", "-H", names, *CONFIG)
    train(two, tmp_path, *words, active=active)
    assert results(tmp_path) == one_host


@by_address_or_name
def test_run_sh(two, one_host, tmp_path, active, names) -> None:
    if active:
        (tmp_path / "hosts").write_text(names.replace(":", " slots=").replace(",", "\n"))
        chosen = {"HOSTFILE": str(tmp_path / "hosts")}
    else:
        chosen = {"HOSTS": names}
    train(two, tmp_path / "models", *RUN, active=active, **chosen)
    assert results(tmp_path / "models") == one_host


@by_address_or_name
def test_mpirun(two, one_host, tmp_path, active, names) -> None:
    words = ("mpirun", "-np", "2", "-H", names, *FLAGS, "python")
    options = (*OPTIONS, "--models-root", str(tmp_path))
    train(two, tmp_path, *words, "train.py", *options, active=active)
    assert results(tmp_path) == one_host


@each_launcher
def test_every_rank_gets_gpus_interface_and_environment(two, tmp_path, command) -> None:
    script = tmp_path / "show.sh"
    script.write_text(SHOW)
    choices = {"CUDA_VISIBLE_DEVICES": "2,3", "NIC": "eth1"}
    words = (*command, "-np", "2", "-H", NAMES, "sh", str(script))
    result = train(two, tmp_path, *words, active=False, **choices)
    for host in two.all:
        assert f"{host.name} 2,3 eth1 {PROGRAMS / 'python'}\n" in result.stdout


@each_launcher
@pytest.mark.parametrize("chosen", [*INTERFACES, None])
def test_messages_take_the_chosen_interface_alone(two, tmp_path, command, chosen) -> None:
    if chosen is None and command != ("mpirun",):
        pytest.skip("horovodrun looks for interfaces itself")
    two.name_on(chosen if "--gloo" in command else INTERFACES[0])
    before = {name: two.first.bytes_sent(name) for name in INTERFACES}
    choice = {"NIC": chosen} if chosen else {}
    train(two, tmp_path, *command, "-np", "2", "-H", ADDRESSES, *CONFIG, **choice)
    two.name_on(INTERFACES[0])
    # Three updates send 13 MB; the hosts' addresses, which ssh takes, are on the first interface.
    for name in INTERFACES:
        sent = two.first.bytes_sent(name) - before[name]
        # Without a choice Open MPI takes all.
        assert sent > 1_000_000 if chosen in (name, None) else sent < 100_000, name


@each_launcher
def test_a_host_that_ssh_does_not_reach_is_named(two, command) -> None:
    words = (*command, "-np", "2", "-H", "10.77.0.1:1,10.77.0.9:1", "true")
    result = two.run(*words, folder=ROOT, path=[PROGRAMS], HOST_TIMEOUT="10")
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: host 10.77.0.9: no connection by ssh (")
