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
SCRIPT = (
    "bash examples/gsp_cifar10_resnet20.sh --batch-size 5 --num-epoch 1 --frequent 1 --resume never"
)
WHY_NOT = hosts.missing()
pytestmark = [pytest.mark.hosts, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("private")


@pytest.fixture(scope="module")
def two(private: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    with TwoHosts(tmp_path_factory.mktemp("hosts") / "hosts", private) as started:
        yield started


def test_a_job_on_a_host_that_has_had_nothing(
    two: TwoHosts, private: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = tmp_path_factory.mktemp("data")
    cifar_records.write(data / "cifar10", 200, 40)
    for name, text in (("machines", "host1\nhost2\n"), ("groups", "host1\nhost2\n")):
        (data / name).write_text(text)
    (data / "data_sharding").write_text("0 0.5\n0.5 1\n")
    project = private / "two words"
    names = [name for name in PROJECT_NAMES if name not in ("docs", "tests")]
    assert two.run("mkdir", project, folder=private).returncode == 0
    copy = ("cp", "-r", *(ROOT / name for name in names), *data.iterdir(), project)
    assert two.run(*copy, folder=private).returncode == 0

    def run(**variables: str):
        return two.run(
            *SCRIPT.split(), folder=project, path=[Path(sys.prefix) / "bin"], HOSTFILE="machines",
            NIC="eth0", DATA_DIR="cifar10", VIRTUAL_ENV=sys.prefix, **variables,
        )  # fmt: skip

    def on(host: str, script: str) -> str:
        done = two.run("ssh", host, f"cd '{project}' && {script}", folder=Path("/"))
        assert done.returncode == 0, done.stderr
        return done.stdout

    without = run()
    assert without.returncode == 2 and "error: host host2: " in without.stderr
    assert "every host needs the project and its environment in the same folders" in without.stderr
    result = run(SYNC="cifar10")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "epoch 1: training loss" in result.stdout
    sums = "sha256sum classify.py train.py cifar10/*.rec cifar10/*.idx"
    assert on("host1", sums) == on("host2", sums) and on("host1", sums).count("\n") == 6
    # The second copy sends what has changed and removes nothing.
    on("host2", "echo own >room && rm train.py && echo damaged >>classify.py")
    result = run(SYNC="")
    assert result.returncode == 0, result.stdout + result.stderr
    assert on("host1", sums) == on("host2", sums) and on("host2", "cat room") == "own\n"
    assert ".sync-" not in on("host2", "ls -a")
