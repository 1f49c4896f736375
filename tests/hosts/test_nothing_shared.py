"""Two hosts that share nothing but the code: what they train, save and resume is that of one host.

Each has a file system of its own under the path of ``--models-root``. With MPI and two ranks, every
array has the same bytes as on one host. ``tar`` stands for ``rsync``, which may not be installed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.state import REPLICATED
from tests.support import hosts
from tests.support.hosts import Host, TwoHosts
from training.checkpoint import layout

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
# Of a folder that another host has into one that is here.
RSYNC = """\
#!/bin/sh
test "$1" = -as || exit 2
test -d "$3" || mkdir "$3"
path=${2#*:}
ssh "${2%%:*}" tar -C "'${path%/*}'" -cf - "'${path##*/}'" | tar -C "$3" -xf -
"""
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


def content(host: Host, models: Path) -> dict[str, Any]:
    """What has to be the same after a run: the weights, and the arrays of the last checkpoint.

    The best model is one of them only where the host had it before.
    """
    last = 'cd "$1" && ls -d model-0*.params $(ls -d checkpoints/update-* | tail -1)/*.json || true'
    found: dict[str, Any] = {}
    for name in shell(host, last, models).decode().split():
        read = shell(host, 'cat "$1"', models / name)
        if name.endswith(".params"):
            found[name] = read
            continue
        for rank, file in layout.parse(read, name).files.items():
            found[f"rank {rank}"] = "is here"
            found.update({
                f"rank {rank}: {entry.name}": entry.checksum
                for entry in file.entries
                if rank == 0 or entry.kind != REPLICATED
            })  # fmt: skip
    return found


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
def on_one_host(two: TwoHosts, private: Path) -> dict[str, dict[str, Any]]:
    """What two ranks on one host end with, by program; what compiles first may round otherwise."""
    found = {}
    for name, command in (("train.py", horovodrun), ("classify.py", classify)):
        for attempt in ("compiled", "loaded"):
            models = private / f"{name} {attempt}"
            result = train(two, command("10.77.0.1:2", models))
            assert result.returncode == 0, result.stdout + result.stderr
        found[name] = content(two.first, models)
        assert "model-0000.params" in found[name] and len(ranks_of(found[name])) == 2
    return found


def ranks_of(found: dict[str, Any]) -> set[str]:
    return {name for name in found if re.fullmatch(r"rank \d", name)}


def assert_spread(parts: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    """Each host has the arrays of its rank and no other; the first has the model."""
    first, second = parts
    assert ranks_of(first) == {"rank 0"} and "model-0000.params" in first
    assert ranks_of(second) == {"rank 1"} and "model-0000.params" not in second
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
    assert_spread([content(host, models) for host in two.all], on_one_host[program])
    metrics = shell(two.first, 'ls "$1"', models).decode().split()
    assert {"metrics.jsonl", "config.json", "logs", "run.lock"} <= set(metrics)
    assert shell(two.second, 'ls "$1"', models).decode().split() == [
        "checkpoints", "logs", "run.lock",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def rsync(private: Path) -> Path:
    """A folder with a program of that name."""
    program = private.parent / "programs" / "rsync"
    program.parent.mkdir()
    program.write_text(RSYNC)
    program.chmod(0o755)
    return program.parent


@pytest.mark.parametrize(
    ("before", "now", "starts_on", "typed"),
    [
        (ADDRESSES, SWAPPED, 1, ["host2", "host1"]),
        (ADDRESSES, "10.77.0.1:2", 0, ["host1"]),
        ("10.77.0.1:2", ADDRESSES, 0, ["host2"]),
    ],
    ids=["another order", "a host less", "a host more"],
)
def test_a_run_continues_after_the_commands_of_its_error(
    two: TwoHosts, private: Path, on_one_host, rsync: Path, tmp_path: Path,
    before: str, now: str, starts_on: int, typed: list[str],
) -> None:  # fmt: skip
    whole, models = private / f"whole {before}", private / tmp_path.name
    if not exists(two.first, whole):
        result = train(two, horovodrun(before, whole))
        assert result.returncode == 0, result.stdout + result.stderr
    # As it was after the first checkpoint.
    later = [models / f"checkpoints/update-000000{update}" for update in (20, 30)]
    for host in two.all if before == ADDRESSES else [two.first]:
        script = 'cp -r "$1" "$2" && rm -rf "$3" "$4" "$2"/model-*'
        shell(host, script, whole, models, *later)
    # Open MPI gives rank 0 to the host on which it is started.
    refused = train(two, horovodrun(now, models), host=starts_on)
    assert refused.returncode == 2
    line = next(line for line in refused.stderr.splitlines() if "error: " in line)
    commands = re.findall(r"(host\d) lacks .*?, type there: (.*?);", line)
    assert [name for name, _ in commands] == typed
    for name, command in commands:
        # Once more, as after an interruption.
        for _ in range(2):
            host = two.all[int(name[-1]) - 1]
            home = two.folder / "home"
            shell(host, f'HOME="$1" PATH="$2:$PATH"; export HOME; {command}', home, rsync)
    result = train(two, horovodrun(now, models), host=starts_on)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"resumed at update {INTERVAL} from" in result.stdout
    parts = [content(host, models) for host in two.all]
    if now == "10.77.0.1:2":
        assert parts[0] == on_one_host["train.py"]
    else:
        assert_spread(parts[::-1] if now == SWAPPED else parts, on_one_host["train.py"])
