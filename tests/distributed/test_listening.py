"""Jobs on this host listen where the table of docs/security.md says, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.launch import clean_environment
from tests.support.listeners import listeners
from tests.support.security_page import ONE_HOST, table

pytestmark = pytest.mark.launcher

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
_LOOK_SECONDS = 0.05
FACES = (
    "--debug", "--num-classes", "50", "--num-images", "50", "--embedding-size", "16",
    "--batch-size", "4", "--max-update", "100000", "--frequent", "1", "--verbose", "100000",
    "--save-interval", "0",
)  # fmt: skip
IMAGES = (
    "--dataset", "synthetic", "--image-size", "16", "--num-images", "20000", "--batch-size", "16",
    "--epochs", "1000", "--frequent", "5", "--eval-frequency", "1000",
)  # fmt: skip
# Ranks with Gloo listen until all are connected, which takes milliseconds if they start together.
LATER = 'sleep "$((2 * HOROVOD_RANK))"; exec bash config.sh "$@"'
RANKS = ("bash", "-c", LATER, "config.sh", *FACES)
# The second and third would have MXNet's scheduler listen elsewhere.
OF_A_SHELL = {"NETWORK": "tiny", "DMLC_USE_KUBERNETES": "1", "DMLC_LOCAL": "1"}
TWO = ("-np", "2", "-H", "localhost:2")
LAUNCH = (sys.executable, "-m", "parallel.launch", "-n", "2", "-s", "1")
CLASSIFY = ("--", sys.executable, "classify.py", *IMAGES)
COMMANDS = {
    "run.sh": ("bash", "run.sh", *FACES),
    "mpirun": (str(PROGRAMS / "mpirun"), "-np", "2", "-bind-to", "none", *RANKS),
    "horovodrun": (str(PROGRAMS / "horovodrun"), "--mpi", *TWO, *RANKS),
    "horovodrun --gloo": (str(PROGRAMS / "horovodrun"), "--gloo", *TWO, *RANKS),
    "train.py": (sys.executable, "train.py", "--dataset", "synthetic", *FACES),
    "dist_sync": (*LAUNCH, *CLASSIFY, "--kv-store", "dist_sync"),
    "dist_async": (*LAUNCH, *CLASSIFY, "--kv-store", "dist_async"),
    "dist_ssync": (*LAUNCH, *CLASSIFY, "--kv-store", "dist_ssync", "--staleness", "1"),
    "dist_gsync": (*LAUNCH, "--groups", "{groups}", *CLASSIFY, "--kv-store", "dist_gsync"),
}


def role(running: processes.Running) -> str:
    """The process's name in the table."""
    words, variables = running.words, running.variables
    names = {Path(word).name for word in words}
    if "DMLC_ROLE" in variables and "parallel.launch.guard" not in words:
        return variables["DMLC_ROLE"]
    for name in ("mpirun", "horovodrun", "parallel.launch"):
        if names & {name, f"{name}.py"}:
            return name
    return "rank" if names & {"train.py"} else " ".join(words)


def watch(job: str, folder: Path) -> dict[str, set[str]]:
    """Start a job; returns who listens from its start until it has trained for some updates."""
    (folder / "groups").write_text("127.0.0.1 127.0.0.1\n")
    command = [word.format(groups=folder / "groups") for word in COMMANDS[job]]
    if "config.sh" not in command and "run.sh" not in command:
        command += ["--models-root", str(folder / "models")]
    output = folder / "output"
    found: dict[str, set[str]] = {}
    before: set[tuple[int, str, str]] = set()
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=file, start_new_session=True,
            env={**clean_environment(), **OF_A_SHELL, processes.FOLDER: str(folder)},
        )  # fmt: skip
    try:
        end = time.monotonic() + 200
        while "update 10/" not in output.read_text(errors="replace"):
            assert process.poll() is None and time.monotonic() < end, output.read_text()
            now = {
                (running.pid, role(running), address)
                for running in processes.of_job(folder)
                for address, _ in listeners(running.pid)
            }
            # A process that has just become another program may still have the sockets of the one
            # that started it.
            for _, name, address in now & before:
                found.setdefault(name, set()).add(address)
            before = now
            time.sleep(_LOOK_SECONDS)
    finally:
        # Launchers before ranks, so that none starts another.
        started = [running.pid for running in processes.of_job(folder)]
        processes.kill(started)
        process.wait(30)
        assert not processes.left(started)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("job", COMMANDS)
def test_processes_listen_where_the_page_says(job: str, tmp_path: Path) -> None:
    said = {name: addresses for name, addresses in table(ONE_HOST)[job].items() if addresses}
    assert watch(job, tmp_path) == said


def test_the_table_has_these_jobs_and_no_open_address() -> None:
    said = table(ONE_HOST)
    assert said.keys() == COMMANDS.keys()
    everywhere = {address for job in said.values() for one in job.values() for address in one}
    assert everywhere <= {"127.0.0.1", "::1"}
