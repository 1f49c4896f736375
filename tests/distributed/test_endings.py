"""However a job ends, it ends on all ranks, in bounded time, and says why."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Optional

import pytest

from tests.support.job import Job
from tests.support.locks import holder

OPTIONS = (
    "--debug", "--num-classes", 50, "--num-images", 50, "--embedding-size", 16, "--batch-size", 4,
    "--max-update", 100_000, "--frequent", 1, "--verbose", 100_000, "--save-interval", 0,
)  # fmt: skip
pytestmark = pytest.mark.launcher


def start(launcher: str, models: Path, *options: object) -> Job:
    """Start a job and wait until it trains."""
    job = Job(launcher, 2, models, *OPTIONS, *options)
    try:
        job.wait_until(lambda: "update 3/" in job.log(0))
        assert sorted(job.processes()) == [0, 1]
    except BaseException:
        # Left alone, its ranks would take the processors from all tests that follow.
        job.end()
        raise
    return job


def wait_for_the_end(job: Job, seconds: float) -> tuple[int, float]:
    """Return the status of the launcher, and how long the last process took to be gone."""
    began = time.monotonic()
    status = job.wait(seconds)
    while job.processes():
        assert time.monotonic() - began < seconds, job.processes()
        time.sleep(0.05)
    return status, time.monotonic() - began


def assert_agreed(job: Job) -> None:
    """Both ranks ended after the same update, which is saved."""
    (ours,), (theirs,) = (
        [line for line in job.log(rank).splitlines() if "told to end:" in line] for rank in (0, 1)
    )
    assert ours.split("told")[-1] == theirs.split("told")[-1]
    update = int(ours.split("after update")[1].split()[0])
    assert (job.models / f"checkpoints/update-{update:08d}/manifest.json").exists()


def test_one_rank_that_is_told_ends_all(tmp_path: Path) -> None:
    with start("--gloo", tmp_path) as job:
        assert f"process {job.processes()[0]}, python" in holder(tmp_path)
        os.kill(job.processes()[1], signal.SIGTERM)
        assert wait_for_the_end(job, 60)[0] != 0
        assert_agreed(job)
        assert holder(tmp_path) == ""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("launcher", "number", "status"),
    [
        ("run.sh", signal.SIGINT, 130),
        ("--mpi", signal.SIGUSR2, 143),
    ],
)
def test_a_job_ends_well_when_it_is_told_to(
    launcher: str, number: int, status: int, tmp_path: Path
) -> None:
    with start(launcher, tmp_path, *(["--restarts", 2] if launcher == "run.sh" else [])) as job:
        job.process.send_signal(number)
        if launcher == "run.sh":
            # Twice: timeout sends it to the command, and to the command's process group.
            time.sleep(0.1)
            job.process.send_signal(number)
        assert wait_for_the_end(job, 60)[0] == status
        assert "starting it again" not in job.said()
        assert_agreed(job)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("launcher", "number", "rank"),
    [
        ("--gloo", signal.SIGKILL, 0),
        ("run.sh", signal.SIGKILL, 1),
        # The launcher itself.
        ("--gloo", signal.SIGKILL, None),
        ("--mpi", signal.SIGKILL, None),
    ],
)
def test_a_process_that_is_killed_ends_all(
    launcher: str, number: int, rank: Optional[int], tmp_path: Path
) -> None:
    with start(launcher, tmp_path) as job:
        os.kill(job.process.pid if rank is None else job.processes()[rank], number)
        status, seconds = wait_for_the_end(job, 60)
        assert seconds < 30 and (rank is None or status not in (0, 2))


@pytest.mark.thorough
def test_a_rank_that_hangs_ends_all(tmp_path: Path) -> None:
    with start("run.sh", tmp_path, "--stall-timeout", 4) as job:
        os.kill(job.processes()[1], signal.SIGSTOP)
        status, seconds = wait_for_the_end(job, 90)
        assert status not in (0, 2) and seconds < 60
        said = job.log(0)
        assert re.search("error: rank 0 on .* has made no progress for .*communication", said)
        assert "training/loop.py" in said, "the stacks of all threads"
