"""What every user of two hosts can read of a job: arguments of processes, and no key or value."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import arguments, hosts
from tests.support.hosts import TwoHosts

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = (ROOT / "setup-utils/launchers", Path(sys.prefix) / "bin")
NAMES = "host1:1,host2:1"
CONFIG = ("bash", "config.sh", "--debug")
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "Hx7c0a1f9e", "WANDB_API_KEY": "Wq2b8d3c55", "MXNET_KEPT": "Mz9e4f6071"
}  # fmt: skip
SHORT = {"NETWORK": "tiny", "BATCH_SIZE": "8", "MAX_UPDATE": "3", "OMP_NUM_THREADS": "1"}
SERVERS = (
    *("python", "-m", "parallel.launch", "-n", "2", "-s", "1", "-H", "hosts", "-i", "eth0"),
    *("--launcher", "ssh", "--", "python", "classify.py", "--kv-store", "dist_async"),
    *("--dataset", "synthetic", "--image-size", "16", "--num-images", "64", "--batch-size", "16"),
    *("--epochs", "1"),
)

WHY_NOT = hosts.missing()
pytestmark = [pytest.mark.hosts, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


def watched(
    two: TwoHosts, *command: object, folder: Path = ROOT, **variables: str
) -> tuple[subprocess.CompletedProcess[str], arguments.Watch]:
    """Run a command, and see the arguments of all processes on both hosts."""
    own = {"VIRTUAL_ENV": sys.prefix, "SEND_VARIABLES": "WANDB_API_KEY", **SHORT, **SECRETS}
    with arguments.Watch() as watch:
        said = two.run(*command, folder=folder, path=PROGRAMS, **{**own, **variables})
    assert any(b"sshd" in one for one in watch.seen)
    return said, watch


@pytest.mark.parametrize(
    "command",
    [
        ("horovodrun", "-np", "2", "-H", NAMES, *CONFIG),
        ("horovodrun", "--gloo", "-np", "2", "-H", NAMES, *CONFIG),
        ("mpirun", "-np", "2", "-H", NAMES, *CONFIG),
        ("bash", "run.sh", "--debug"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_training(two: TwoHosts, tmp_path: Path, command: tuple[str, ...]) -> None:
    said, watch = watched(two, *command, HOSTS=NAMES, MODELS_ROOT=str(tmp_path))
    assert said.returncode == 0, said.stdout + said.stderr
    assert any(b"train.py" in one for one in watch.seen)
    assert watch.having(*SECRETS.values()) == []


@pytest.mark.parametrize("controller", ["--mpi", "--gloo"])
def test_ranks_get_the_variables(two: TwoHosts, controller: str) -> None:
    show = 'echo "$(hostname) $MXNET_KEPT $WANDB_API_KEY"; sleep 1'
    words = ("horovodrun", controller, "-np", "2", "-H", NAMES, "sh", "-c", show)
    said, watch = watched(two, *words)
    assert said.returncode == 0, said.stdout + said.stderr
    for host in two.all:
        assert f"{host.name} Mz9e4f6071 Wq2b8d3c55\n" in said.stdout
    assert watch.having(*SECRETS.values()) == []


def test_a_job_with_parameter_servers(two: TwoHosts, project: Path, tmp_path: Path) -> None:
    (project / "hosts").write_text("host1\nhost2\n")
    words = (*SERVERS, "--models-root", str(tmp_path))
    said, watch = watched(two, *words, folder=project, SEND_VARIABLES="")
    assert said.returncode == 0, said.stdout + said.stderr
    assert any(b"parallel.launch.guard" in one for one in watch.seen)
    assert watch.having(*SECRETS.values()) == []


def test_the_check_of_hosts(two: TwoHosts) -> None:
    said, watch = watched(two, "python", "-m", "parallel.check", "-H", NAMES)
    assert "host2" in said.stdout and "Traceback" not in said.stderr
    assert any(b"parallel.check.probe" in one for one in watch.seen)
    assert watch.having(*SECRETS.values()) == []
