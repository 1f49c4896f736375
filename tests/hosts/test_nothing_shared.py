"""Two hosts that share nothing but the code: what they train, save and resume is that of one host.

Each has a file system of its own under the path of ``--models-root``. With MPI and two ranks, every
file has the same bytes as on one host.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import Host, TwoHosts

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
ONE, ADDRESSES, SWAPPED = "10.77.0.1:2", "10.77.0.1:1,10.77.0.2:1", "10.77.0.2:1,10.77.0.1:1"
INTERVAL = 10
FACES = {"NETWORK": "tiny", "BATCH_SIZE": "8", "MAX_UPDATE": "30"}
# The flags as InsightFace's run.sh has them.
COMMANDS = {
    "train.py": "horovodrun -np 2 -H {hosts} bash config.sh --debug --save-interval 10 --keep 9",
    "classify.py": "mpirun -np 2 -H {hosts} -bind-to none -map-by slot -mca pml ob1 -mca btl "
    "^openib -mca btl_tcp_if_include eth0 python classify.py --dataset synthetic "
    "--num-examples 320 --batch-size 16 --epochs 3 --save-frequency 1 --keep 9",
}
_SECONDS = 400


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


class Run:
    """A command on the first host, or on the second, which writes into a file."""

    def __init__(self, two: TwoHosts, words: list[str], host: int = 0) -> None:
        self.output = two.folder / "output"
        path = f"{PROGRAMS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        own = {"HOME": str(two.folder / "home"), "PATH": path, "VIRTUAL_ENV": sys.prefix, **FACES}
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                two.all[host].inside("sh", "-c", 'cd "$0" && exec "$@"', ROOT, *words),
                env={**own, "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL, stdout=file,
                stderr=file,
            )  # fmt: skip

    def ends(self, status: int = 0) -> str:
        ended, said = self.process.wait(_SECONDS), self.output.read_text()
        assert ended == status, said
        return said


def job(program: str, hosts: str, models: Path) -> list[str]:
    return [*COMMANDS[program].format(hosts=hosts).split(), "--models-root", str(models)]


def shell(host: Host, script: str, *words: object) -> bytes:
    return subprocess.check_output(host.inside("sh", "-c", script, "sh", *words))


def content(host: Host, models: Path) -> dict[str, bytes]:
    """The files of a run on a host that have to be the same: weights, and the last checkpoint's.

    The best model is one of them only where the host had it before.
    """
    last = 'cd "$1" && ls -d model-0*.params $(ls -d checkpoints/update-* | tail -1)/*.bin || true'
    names = shell(host, last, models).decode().split()
    return {Path(name).name: shell(host, 'cat "$1"', models / name) for name in names}


def ranks_on(host: Host, program: str) -> list[int]:
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in host.processes()}
    pattern = rb"[^\0]+\0[^\0]*" + re.escape(program).encode() + rb"\0"
    return [pid for pid, one in words.items() if re.match(pattern, one)]


@pytest.fixture(scope="module")
def on_one_host(two: TwoHosts, private: Path) -> dict[str, dict[str, bytes]]:
    """What two ranks on one host end with, by program; what compiles first may round otherwise."""
    found = {}
    for program in COMMANDS:
        for attempt in ("compiled", "loaded"):
            models = private / f"{program} {attempt}"
            Run(two, job(program, ONE, models)).ends()
        found[program] = content(two.first, models)
        assert {"model-0000.params", "rank-0000.bin", "rank-0001.bin"} <= set(found[program])
    return found


@pytest.mark.parametrize("program", COMMANDS)
def test_a_killed_run_resumes_to_the_same_bytes(
    two: TwoHosts, private: Path, on_one_host, program: str
) -> None:
    models = private / program
    run, end = Run(two, job(program, ADDRESSES, models)), time.monotonic() + _SECONDS
    saved = models / f"checkpoints/update-000000{INTERVAL}"
    is_there = 'test -e "$1" && echo yes || true'
    while not all(shell(host, is_there, saved) for host in two.all):
        assert run.process.poll() is None and time.monotonic() < end, run.output.read_text()
        time.sleep(0.02)
    os.kill(ranks_on(two.second, program)[0], signal.SIGKILL)
    assert run.process.wait(_SECONDS) != 0
    assert not any(ranks_on(host, program) for host in two.all)
    said = Run(two, job(program, ADDRESSES, models)).ends()
    assert "resumed at update " in said and "re-cut" not in said
    # Each host has the file of its rank and no other; the first has the model.
    first, second = (content(host, models) for host in two.all)
    assert "rank-0001.bin" not in first and set(second) == {"rank-0001.bin"}
    assert {**first, **second} == on_one_host[program]
    first_names, second_names = (set(shell(host, 'ls "$1"', models).split()) for host in two.all)
    assert {b"metrics.jsonl", b"config.json", b"logs", b"run.lock"} <= first_names
    assert second_names == {b"checkpoints", b"logs", b"run.lock"}


def test_hosts_in_another_order_and_one_that_is_missing(
    two: TwoHosts, private: Path, on_one_host
) -> None:
    whole, swapped, alone = (private / name for name in ("whole", "swapped", "alone"))
    Run(two, job("train.py", ADDRESSES, whole)).ends()
    for models in (swapped, alone):
        for host in two.all:
            # As it was after the first checkpoint.
            script = 'cp -r "$1" "$2" && cd "$2" && rm -rf model-* checkpoints/*20 checkpoints/*30'
            shell(host, script, whole, models)
    # Open MPI gives rank 0 to the host on which it is started.
    said = Run(two, job("train.py", SWAPPED, swapped), host=1).ends()
    assert f"resumed at update {INTERVAL} from" in said
    first, second = (content(host, swapped) for host in (two.second, two.first))
    assert set(second) == {"rank-0001.bin"} and {**first, **second} == on_one_host["train.py"]
    said = Run(two, job("train.py", ONE, alone)).ends(status=2)
    lines = [line for line in said.splitlines() if "error: " in line]
    assert lines and all("lacks rank-0001.bin of host2, no host of this run" in x for x in lines)
    assert "python -m training.checkpoint gather -H host1,host2 " in lines[0]
    gather = ["python", "-m", "training.checkpoint", "gather", "-H", "host1,host2", str(alone)]
    # Again, it changes nothing.
    for _ in range(2):
        assert "has the files of all 2 ranks" in Run(two, gather).ends()
    Run(two, job("train.py", ONE, alone)).ends()
    assert content(two.first, alone) == on_one_host["train.py"]
