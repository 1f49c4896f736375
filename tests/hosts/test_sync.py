"""``parallel.launch --sync`` to a host that has nothing but ssh and the environment, then the job.

Each host has a file system of its own under the project's folder. The job is a script of
``examples/`` on CIFAR's record files, as it is typed for several hosts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallel.launch.sync import PROJECT_NAMES
from tests.support import cifar_records, hosts
from tests.support.hosts import TwoHosts

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
SCRIPT = ("bash", "examples/gsp_cifar10_resnet20.sh")
SHORT = "--batch-size 5 --num-epoch 1 --frequent 1 --resume never".split()

WHY_NOT = hosts.missing()
pytestmark = [pytest.mark.hosts, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("private") / "each"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def two(private: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    with TwoHosts(tmp_path_factory.mktemp("hosts") / "hosts", private) as started:
        yield started


@pytest.fixture(scope="module")
def project(two: TwoHosts, private: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project and its data on the first host alone."""
    data = tmp_path_factory.mktemp("data")
    cifar_records.write(data / "cifar10", 200, 40)
    (data / "machines").write_text("host1\nhost2\n")
    (data / "groups").write_text("host1\nhost2\n")
    (data / "data_sharding").write_text("0 0.5\n0.5 1\n")
    folder = private / "two words"
    names = [name for name in PROJECT_NAMES if name not in ("docs", "tests")]
    assert two.run("mkdir", folder, folder=private).returncode == 0
    copy = ("cp", "-r", *(ROOT / name for name in names), *data.iterdir(), folder)
    assert two.run(*copy, folder=private).returncode == 0
    return folder


def run(two: TwoHosts, project: Path, **variables: str):
    return two.run(
        *SCRIPT, *SHORT, folder=project, path=[PROGRAMS], HOSTFILE="machines", NIC="eth0",
        DATA_DIR="cifar10", VIRTUAL_ENV=sys.prefix, **variables,
    )  # fmt: skip


def on(two: TwoHosts, host: int, *command: object) -> str:
    done = two.run("ssh", f"host{host}", *command, folder=Path("/"))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_a_copy_the_host_is_named(two: TwoHosts, project: Path) -> None:
    result = run(two, project)
    assert result.returncode == 2 and "error: host host2: " in result.stderr
    assert "every host needs the project and its environment in the same folders" in result.stderr


def test_a_job_on_a_host_that_has_had_nothing(two: TwoHosts, project: Path) -> None:
    result = run(two, project, SYNC="cifar10")
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("launch: host")]
    assert lines[0].startswith("launch: host1 has all ")
    assert lines[1].startswith("launch: host2 got ") and " files, " in lines[1]
    assert "epoch 1: training loss" in result.stdout
    line = f"cd '{project}' && sha256sum classify.py cifar10/*.rec cifar10/*.idx"
    sums = [on(two, host, line) for host in (1, 2)]
    assert sums[0] == sums[1] and sums[0].count("\n") == 5


def test_the_second_copy_sends_what_has_changed_and_removes_nothing(
    two: TwoHosts, project: Path
) -> None:
    on(two, 2, f"cd '{project}' && echo own >room && rm train.py && echo damaged >>classify.py")
    result = run(two, project, SYNC="")
    assert result.returncode == 0, result.stdout + result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("launch: host2")]
    assert " got 2 of " in line and "classify.py, train.py" in line
    assert on(two, 2, f"cat '{project}/room'") == "own\n"
    assert on(two, 2, f"ls -a '{project}'").count(".sync-") == 0
