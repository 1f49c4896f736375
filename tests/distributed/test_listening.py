"""Jobs on this host listen where the table of docs/security.md says, and nowhere else.

Another user of this host calls every port of a job: its result stays what it is, or it ends. A rank
of Gloo ends if another user calls it where none of its own ranks will.
"""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Union

import pytest

from tests.support.job import Started
from tests.support.launch import ROOT
from tests.support.listeners import listeners
from tests.support.security_page import ONE_HOST, role, table
from tests.support.stranger import AS_ROOT

pytestmark = pytest.mark.launcher

# They do not end by themselves.
FACES = (
    "--debug --num-classes 50 --num-images 50 --embedding-size 16 --batch-size 4 --frequent 1 "
    "--max-update 100000 --verbose 100000 --save-interval 0"
).split()
IMAGES = (
    "--dataset synthetic --image-size 16 --num-images 20000 --batch-size 16 --epochs 1000 "
    "--frequent 5 --eval-frequency 1000"
).split()
# Ranks with Gloo listen until all are connected, which takes milliseconds if they start together.
LATER = 'sleep "$((2 * HOROVOD_RANK))"; exec bash config.sh "$@"'
RANKS = ("bash", "-c", LATER, "config.sh", *FACES)
# The second and third would have MXNet's scheduler listen elsewhere.
OF_A_SHELL = {"NETWORK": "tiny", "DMLC_USE_KUBERNETES": "1", "DMLC_LOCAL": "1"}
MPIRUN, HOROVODRUN = (str(Path(sys.executable).with_name(one)) for one in ("mpirun", "horovodrun"))
TWO = ("-np", "2", "-H", "localhost:2")
LAUNCH = (sys.executable, "-m", "parallel.launch", "-n", "2", "-s", "1")
CLASSIFY = ("--", sys.executable, "classify.py", *IMAGES, "--kv-store")
GROUPED = (*LAUNCH, "--groups", "{folder}/groups", *CLASSIFY, "dist_gsync")
COMMANDS = {
    "run.sh": ("bash", "run.sh", *FACES),
    "mpirun": (MPIRUN, "-np", "2", "-bind-to", "none", *RANKS),
    "horovodrun": (HOROVODRUN, "--mpi", *TWO, *RANKS),
    "horovodrun --gloo": (HOROVODRUN, "--gloo", *TWO, *RANKS),
    "train.py": (sys.executable, "train.py", "--dataset", "synthetic", "--network", "tiny", *FACES),
    "dist_sync": (*LAUNCH, *CLASSIFY, "dist_sync"),
    "dist_async": (*LAUNCH, *CLASSIFY, "dist_async"),
    "dist_ssync": (*LAUNCH, *CLASSIFY, "dist_ssync", "--staleness", "1"),
    "dist_gsync": GROUPED,
}
# In the rows of run.sh and of dist_async, which start the same processes.
LIKE = ("mpirun", "dist_sync", "dist_ssync")


def start(folder: Path, *command: str) -> Started:
    """Start a job that writes below a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "groups").write_text("127.0.0.1 127.0.0.1\n")
    words = [word.replace("{folder}", str(folder)) for word in command]
    return Started(folder, *words, "--models-root", folder / "models", **OF_A_SHELL)


@pytest.mark.thorough
@pytest.mark.parametrize("job", [job for job in COMMANDS if job not in LIKE])
def test_processes_listen_where_the_page_says(job: str, tmp_path: Path) -> None:
    """From its start until it has trained for some updates."""
    found: dict[str, set[str]] = {}
    before: set[tuple[int, str, str]] = set()

    def look() -> bool:
        nonlocal before
        now = {
            (running.pid, role(running.words, running.variables), address)
            for running in started.running()
            for address, _ in listeners(running.pid)
        }
        # A process that has just become another program may still have the sockets of the one that
        # started it.
        for _, name, address in now & before:
            found.setdefault(name, set()).add(address)
        before = now
        return "update 10/" in started.said()

    with start(tmp_path, *COMMANDS[job]) as started:
        started.wait_until(look, 200)
    said = {name: addresses for name, addresses in table(ONE_HOST)[job].items() if addresses}
    assert found == said


def test_the_table_has_these_jobs_and_no_open_address() -> None:
    said = table(ONE_HOST)
    assert said.keys() == COMMANDS.keys()
    everywhere = {address for job in said.values() for one in job.values() for address in one}
    assert everywhere <= {"127.0.0.1", "::1"}


FEW = ("--max-update", "12")
DISTURBED = {
    "run.sh": (*COMMANDS["run.sh"], *FEW),
    "horovodrun --gloo": (HOROVODRUN, "--gloo", *TWO, "bash", "config.sh", *FACES, *FEW),
    "dist_gsync": (*GROUPED, "--num-examples", "160", "--epochs", "1"),
}


def train(job: str, folder: Path) -> Union[bytes, str]:
    """Run a job to its end; returns the trained weights, or what it said if it failed."""
    with start(folder, *DISTURBED[job]) as started:
        if started.wait(300):
            return started.said()
    (weights,) = (folder / "models").rglob("model-0000.params")
    return weights.read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    """Return what trains a program alone; two ranks' sums are the same however they are made."""

    @lru_cache(None)
    def alone(job: str) -> Union[bytes, str]:
        # The first run compiles, and may round differently.
        return [train(job, tmp_path_factory.mktemp("alone")) for _ in range(2)][1]

    return alone


@AS_ROOT
@pytest.mark.thorough
@pytest.mark.parametrize("job", DISTURBED)
def test_another_user_changes_nothing(job: str, tmp_path: Path, undisturbed) -> None:
    weights = undisturbed("dist_gsync" if job == "dist_gsync" else "run.sh")
    command = [sys.executable, "-m", "tests.support.stranger"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        try:
            disturbed = train(job, tmp_path / "disturbed")
        finally:
            process.kill()
            reached = process.stdout.read().split("\n")[:-1]
    assert reached and isinstance(weights, bytes)
    if job == "run.sh" or isinstance(disturbed, bytes):
        assert disturbed == weights
    else:
        assert "accept: Software caused connection abort" in disturbed
