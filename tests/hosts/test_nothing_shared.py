"""Two hosts that share nothing but the code: what they train, save and resume is that of one host.

Each has a file system of its own under the path of ``--models-root``. With MPI and two ranks, every
file has the same bytes as on one host.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import hosts
from tests.support.hosts import Host, TwoHosts

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
ADDRESSES, SWAPPED = "10.77.0.1:1,10.77.0.2:1", "10.77.0.2:1,10.77.0.1:1"
UPDATES, INTERVAL = 30, 10
VARIABLES = {"OMP_NUM_THREADS": "1", "VIRTUAL_ENV": sys.prefix}
FACES = {"NETWORK": "tiny", "BATCH_SIZE": "8", "MAX_UPDATE": str(UPDATES)}
CHOICES = ("--debug", "--save-interval", str(INTERVAL), "--keep", "9")
# As InsightFace's run.sh has them.
FLAGS = "-bind-to none -map-by slot -mca pml ob1 -mca btl ^openib -mca btl_tcp_if_include eth0"
IMAGES = (
    "--dataset synthetic --num-examples 320 --batch-size 16 --epochs 3 --save-frequency 1 --keep 9"
)
_SECONDS = 400

WHY_NOT = hosts.missing()
pytestmark = [pytest.mark.hosts, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

Command = Callable[[str, Path], list[str]]
"""The words of a command, from the list of hosts and the --models-root."""


def horovodrun(names: str, models: Path) -> list[str]:
    words = ["horovodrun", "-np", "2", "-H", names, "bash", "config.sh", *CHOICES]
    return [*words, "--models-root", str(models)]


def run_sh(names: str, models: Path) -> list[str]:
    return ["env", f"HOSTS={names}", "bash", "run.sh", *CHOICES, "--models-root", str(models)]


def classify(names: str, models: Path) -> list[str]:
    words = ["mpirun", "-np", "2", "-H", names, *FLAGS.split(), "python", "classify.py"]
    return [*words, *IMAGES.split(), "--models-root", str(models)]


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that each host has for itself, with a name that a shell has to be told of."""
    folder = tmp_path_factory.mktemp("nothing shared")
    (folder / "own disk").mkdir()
    return folder / "own disk"


@pytest.fixture(scope="module")
def two(private: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    with TwoHosts(tmp_path_factory.mktemp("hosts") / "hosts", private) as started:
        yield started


def start(
    two: TwoHosts, command: list[str], output: Path, errors: Path, host: int = 0
) -> subprocess.Popen[bytes]:
    """A command on the first host, or on the second, which writes into two files."""
    path = f"{PROGRAMS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    words = two.all[host].inside("sh", "-c", 'cd "$0" && exec "$@"', ROOT, *command)
    environment = {"HOME": str(two.folder / "home"), "PATH": path, **VARIABLES, **FACES}
    with output.open("wb") as file, errors.open("wb") as error_file:
        return subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=error_file
        )


def train(two: TwoHosts, command: list[str], host: int = 0) -> subprocess.CompletedProcess[str]:
    """The same, to its end."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder) / "output", Path(folder) / "errors"
        status = start(two, command, output, errors, host).wait(_SECONDS)
        return subprocess.CompletedProcess(command, status, output.read_text(), errors.read_text())


def shell(host: Host, script: str, *words: object) -> bytes:
    return subprocess.run(
        host.inside("sh", "-c", script, "sh", *words), stdout=subprocess.PIPE, check=True
    ).stdout


def content(host: Host, models: Path) -> dict[str, bytes]:
    """The files of a run on a host that have to be the same: weights, and the last checkpoint's.

    The best model is one of them only where the host had it before.
    """
    last = 'cd "$1" && ls -d model-0*.params $(ls -d checkpoints/update-* | tail -1)/*.bin || true'
    names = shell(host, last, models).decode().split()
    return {Path(name).name: shell(host, 'cat "$1"', models / name) for name in names}


def ranks_on(host: Host) -> list[int]:
    """The processes of ranks."""
    found = []
    for process in host.processes():
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        programs = [word for word in words[1:2] if word.endswith((b"train.py", b"classify.py"))]
        found += [process] if programs else []
    return found


def exists(host: Host, path: Path) -> bool:
    return subprocess.run(host.inside("test", "-e", path), check=False).returncode == 0


def wait_until(true: Callable[[], bool], job: subprocess.Popen[bytes], output: Path) -> None:
    end = time.monotonic() + _SECONDS
    while not true():
        assert job.poll() is None and time.monotonic() < end, output.read_text()
        time.sleep(0.02)


@pytest.fixture(scope="module")
def on_one_host(two: TwoHosts, private: Path) -> dict[str, dict[str, bytes]]:
    """What two ranks on one host end with, by program; what compiles first may round otherwise."""
    found = {}
    for name, command in (("train.py", horovodrun), ("classify.py", classify)):
        for attempt in ("compiled", "loaded"):
            models = private / f"{name} {attempt}"
            result = train(two, command("10.77.0.1:2", models))
            assert result.returncode == 0, result.stdout + result.stderr
        found[name] = content(two.first, models)
        assert {"model-0000.params", "rank-0000.bin", "rank-0001.bin"} <= set(found[name])
    return found


def assert_spread(two: TwoHosts, models: Path, expected: dict[str, bytes]) -> None:
    """Each host has the file of its rank and no other; the first has the model."""
    first, second = (content(host, models) for host in two.all)
    assert "rank-0000.bin" in first and "rank-0001.bin" not in first
    assert set(second) == {"rank-0001.bin"}
    assert {**first, **second} == expected


@pytest.mark.parametrize(
    ("command", "program", "dies"),
    [(horovodrun, "train.py", 1), (run_sh, "train.py", 0), (classify, "classify.py", 1)],
    ids=["horovodrun", "run.sh", "classify"],
)
def test_a_killed_run_resumes_to_the_same_bytes(
    two: TwoHosts, private: Path, on_one_host, tmp_path: Path, command, program: str, dies: int
) -> None:
    models, output = private / command.__name__, tmp_path / "output"
    job = start(two, command(ADDRESSES, models), output, tmp_path / "errors")
    name = f"checkpoints/update-000000{INTERVAL}"
    wait_until(lambda: all(exists(host, models / name) for host in two.all), job, output)
    os.kill(ranks_on(two.all[dies])[0], signal.SIGKILL)
    assert job.wait(_SECONDS) != 0
    assert not any(ranks_on(host) for host in two.all)
    result = train(two, command(ADDRESSES, models))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "resumed at update " in result.stdout and "re-cut" not in result.stdout
    assert_spread(two, models, on_one_host[program])
    metrics = shell(two.first, 'ls "$1"', models).decode().split()
    assert {"metrics.jsonl", "config.json", "logs", "run.lock"} <= set(metrics)
    assert shell(two.second, 'ls "$1"', models).decode().split() == [
        "checkpoints", "logs", "run.lock",
    ]  # fmt: skip


@pytest.fixture
def interrupted(two: TwoHosts, private: Path, tmp_path: Path) -> Path:
    """A run on both hosts as it was after the first checkpoint."""
    whole, models = private / "whole", private / tmp_path.name
    if not exists(two.first, whole):
        result = train(two, horovodrun(ADDRESSES, whole))
        assert result.returncode == 0, result.stdout + result.stderr
    later = [models / f"checkpoints/update-000000{update}" for update in (20, 30)]
    for host in two.all:
        script = 'cp -r "$1" "$2" && rm -rf "$3" "$4" "$2"/model-*'
        shell(host, script, whole, models, *later)
    return models


def test_hosts_in_another_order(two: TwoHosts, on_one_host, interrupted: Path) -> None:
    # Open MPI gives rank 0 to the host on which it is started.
    result = train(two, horovodrun(SWAPPED, interrupted), host=1)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"resumed at update {INTERVAL} from" in result.stdout
    first, second = (content(host, interrupted) for host in (two.second, two.first))
    assert set(second) == {"rank-0001.bin"} and {**first, **second} == on_one_host["train.py"]


def test_a_host_that_is_missing_and_gather(two: TwoHosts, on_one_host, interrupted: Path) -> None:
    alone = horovodrun("10.77.0.1:2", interrupted)
    refused = train(two, alone)
    assert refused.returncode == 2
    lines = [line for line in refused.stderr.splitlines() if "error: " in line]
    assert lines and all("lacks rank-0001.bin of host2, no host of this run" in x for x in lines)
    assert "python -m training.checkpoint gather -H host1,host2 " in lines[0]

    gather = [
        "python",
        "-m",
        "training.checkpoint",
        "gather",
        "-H",
        "host1,host2",
        str(interrupted),
    ]
    for _ in ("first", "again"):
        result = train(two, gather)
        assert (result.returncode, result.stderr) == (0, "")
        assert "has the files of all 2 ranks" in result.stdout
    result = train(two, alone)
    assert result.returncode == 0, result.stdout + result.stderr
    assert content(two.first, interrupted) == on_one_host["train.py"]


def test_scatter(two: TwoHosts, private: Path, on_one_host, tmp_path: Path) -> None:
    models = private / tmp_path.name
    script = 'cp -r "$1" "$2" && cd "$2" && rm -rf model-* checkpoints/*20 checkpoints/*30'
    shell(two.first, script, private / "train.py loaded", models)
    scatter = ["python", "-m", "training.checkpoint", "scatter", "-H", ADDRESSES, str(models)]
    for _ in ("first", "again"):
        result = train(two, scatter)
        assert (result.returncode, result.stderr) == (0, "")
        assert "files on host1 1, host2 1" in result.stdout
    assert exists(two.second, models / f"checkpoints/update-000000{INTERVAL}/rank-0001.bin")
    result = train(two, horovodrun(ADDRESSES, models))
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"resumed at update {INTERVAL} from" in result.stdout
    assert_spread(two, models, on_one_host["train.py"])


def test_a_host_that_ssh_does_not_reach_is_named(two: TwoHosts, interrupted: Path) -> None:
    words = ["python", "-m", "training.checkpoint", "gather", "-H", "10.77.0.9", str(interrupted)]
    result = train(two, words)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "error: 10.77.0.9 cannot be reached by ssh without a password: " in result.stderr
