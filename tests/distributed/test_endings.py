"""Jobs end on all ranks in bounded time, and listen only where docs/security.md says."""

import os
import re
import signal
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path

import pytest

from tests.support import launch
from tests.support.job import Job, Started, holder
from tests.support.launch import ROOT
from tests.support.processes import listeners
from tests.support.security_page import ONE_HOST, role, table
from tests.support.stranger import AS_ROOT

pytestmark = pytest.mark.launcher
# Without sets to verify on, which takes most of the time of a short run.
FACES = (
    "--debug --rec . --num-classes 50 --num-images 50 --embedding-size 16 --batch-size 4 "
    "--frequent 1 --max-update 100000 --verbose 100000 --save-interval 0"
).split()
IMAGES = (
    "--dataset synthetic --image-size 16 --num-images 20000 --batch-size 16 --epochs 1000 "
    "--frequent 5 --eval-frequency 1000"
).split()
# Ranks with Gloo listen until all are connected, which takes milliseconds if they start together;
# under load a look takes a second, and two have to see them.
LATER = 'sleep "$((10 * HOROVOD_RANK))"; exec bash config.sh "$@"'
RANKS = ("bash", "-c", LATER, "config.sh", *FACES)
# The second and third would have MXNet's scheduler listen elsewhere.
OF_A_SHELL = {"NETWORK": "tiny", "DMLC_USE_KUBERNETES": "1", "DMLC_LOCAL": "1"}
GLOO, MPI = (launch.ranks(f"--{controller}", 2) for controller in ("gloo", "mpi"))
GROUPED = (
    *(sys.executable, "-m", "parallel.launch", "-n", "2", "-s", "1", "--groups", "{folder}/groups"),
    *("--", sys.executable, "classify.py", *IMAGES, "--kv-store", "dist_gsync"),
)
# The other jobs of the table start the same processes as these.
COMMANDS = {
    "horovodrun": (*MPI, *RANKS),
    "horovodrun --gloo": (*GLOO, *RANKS),
    "train.py": (sys.executable, "train.py", "--dataset", "synthetic", "--network", "tiny", *FACES),
    "dist_gsync": GROUPED,
}
FEW = ("--max-update", "12")
DISTURBED = {
    "run.sh": ("bash", "run.sh", *FACES, *FEW),
    "horovodrun --gloo": (*GLOO, "bash", "config.sh", *FACES, *FEW),
    "dist_gsync": (*GROUPED, "--num-examples", "160", "--epochs", "1"),
}


def train(launcher: str, models: Path, *options: object) -> Job:
    job = Job(launcher, 2, models, *FACES, *options)
    try:
        job.wait_until(lambda: "update 3/" in job.log(0))
        assert sorted(job.processes()) == [0, 1]
    except BaseException:
        # Left alone, its ranks would take the processors from all tests that follow.
        job.end()
        raise
    return job


def pid_of(job: Job, victim) -> int:
    return job.process.pid if victim is None else job.processes()[victim]


def wait_for_the_end(job: Job, seconds: float) -> tuple[int, float]:
    """Return the status of the launcher, and how long the last process took to be gone."""
    began = time.monotonic()
    status = job.wait(seconds)
    while job.processes():
        assert time.monotonic() - began < seconds, job.processes()
        time.sleep(0.05)
    return status, time.monotonic() - began


@pytest.mark.parametrize(("launcher", "victim", "number", "statuses"), [
    ("--gloo", 1, signal.SIGTERM, range(1, 256)),
    pytest.param("run.sh", None, signal.SIGINT, [130], marks=pytest.mark.thorough),
    pytest.param("--mpi", None, signal.SIGUSR2, [143], marks=pytest.mark.thorough),
])  # fmt: skip
def test_a_job_told_to_end_saves_the_same_update(launcher, victim, number, statuses, tmp_path):
    with train(launcher, tmp_path, *(["--restarts", 2] if launcher == "run.sh" else [])) as job:
        assert f"process {job.processes()[0]}, python" in holder(tmp_path)
        os.kill(pid_of(job, victim), number)
        if launcher == "run.sh":
            # Twice: timeout sends it to the command, and to the command's process group.
            time.sleep(0.1)
            job.process.send_signal(number)
        assert wait_for_the_end(job, 60)[0] in statuses
        assert "starting it again" not in job.said() and holder(tmp_path) == ""
        ours, theirs = (re.findall(r"told( to end: .*)", job.log(rank)) for rank in (0, 1))
        assert ours == theirs and len(ours) == 1
        (update,) = re.findall(r"after update (\d+)", ours[0])
        assert (tmp_path / f"checkpoints/update-{int(update):08d}/manifest.json").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(("launcher", "victim", "number", "longest"), [
    ("--gloo", 0, signal.SIGKILL, 30),
    ("run.sh", 1, signal.SIGKILL, 30),
    ("--gloo", None, signal.SIGKILL, 30),
    ("--mpi", None, signal.SIGKILL, 30),
    ("run.sh", 1, signal.SIGSTOP, 60),
])  # fmt: skip
def test_a_process_that_is_killed_or_hangs_ends_all(launcher, victim, number, longest, tmp_path):
    hangs = number == signal.SIGSTOP
    with train(launcher, tmp_path, *(["--stall-timeout", 4] if hangs else [])) as job:
        os.kill(pid_of(job, victim), number)
        status, seconds = wait_for_the_end(job, 90)
        assert seconds < longest and (victim is None or status not in (0, 2))
        if hangs:
            said = job.log(0)
            assert re.search("error: rank 0 on .* has made no progress for .*communication", said)
            assert "training/loop.py" in said, "the stacks of all threads"


def start(folder: Path, *command: str) -> Started:
    folder.mkdir(exist_ok=True)
    (folder / "groups").write_text("127.0.0.1 127.0.0.1\n")
    words = [word.replace("{folder}", str(folder)) for word in command]
    return Started(folder, *words, "--models-root", folder / "models", **OF_A_SHELL)


@pytest.mark.thorough
@pytest.mark.parametrize("job", COMMANDS)
def test_processes_listen_where_the_page_says(job: str, tmp_path: Path) -> None:
    found: dict[str, set[str]] = {}
    before: set[tuple[int, str, str]] = set()
    looks = 0
    with start(tmp_path, *COMMANDS[job]) as started:

        def has_trained_for_two_looks() -> bool:
            nonlocal before, looks
            now = {
                (running.pid, role(running.words, running.variables), address)
                for running in started.running()
                for address, _ in listeners(running.pid)
            }
            # A process that has just become another program may still have the sockets of the one
            # that started it.
            for _, name, address in now & before:
                found.setdefault(name, set()).add(address)
            before = now
            looks += "update 10/" in started.said()
            # Small networks train so fast that all updates may lie between two looks.
            return looks > 2

        started.wait_until(has_trained_for_two_looks, 200)
    assert found == {name: places for name, places in table(ONE_HOST)[job].items() if places}


def test_the_table_has_these_jobs_and_no_open_address() -> None:
    said = table(ONE_HOST)
    assert said.keys() >= COMMANDS.keys()
    everywhere = {address for job in said.values() for one in job.values() for address in one}
    assert everywhere <= {"127.0.0.1", "::1"}


def weights(folder: Path) -> bytes:
    (file,) = (folder / "models").rglob("model-0000.params")
    return file.read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    """Return what a job trains alone; two ranks' sums are the same however they are made."""

    @lru_cache(None)
    def alone(job: str, number: int = 0) -> bytes:
        folder = tmp_path_factory.mktemp("alone")
        with start(folder, *DISTURBED[job]) as started:
            assert started.wait(300) == 0, started.said()
        return weights(folder)

    return alone


@AS_ROOT
@pytest.mark.thorough
@pytest.mark.parametrize("job", DISTURBED)
def test_another_user_changes_nothing(job: str, tmp_path: Path, undisturbed) -> None:
    like = "dist_gsync" if job == "dist_gsync" else "run.sh"
    undisturbed(like)
    command = [sys.executable, "-m", "tests.support.stranger"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        try:
            with start(tmp_path, *DISTURBED[job]) as started:
                status, said = started.wait(300), started.said()
        finally:
            process.kill()
            reached = process.stdout.read().split("\n")[:-1]
    assert reached
    if status and job != "run.sh":
        assert "accept: Software caused connection abort" in said
        return
    assert status == 0, said
    if weights(tmp_path) != undisturbed(like):
        # The first job of all compiles, and may round differently.
        assert weights(tmp_path) == undisturbed(like, 1), said
