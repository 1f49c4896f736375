"""However a job ends, it ends on all ranks, in bounded time, and says why."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Optional

import pytest

from tests.support.job import Job, holder

OPTIONS = (
    "--debug --num-classes 50 --num-images 50 --embedding-size 16 --batch-size 4 "
    "--max-update 100000 --frequent 1 --verbose 100000 --save-interval 0"
).split()
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


def pid_of(job: Job, victim: Optional[int]) -> int:
    """Return the process of a rank, or that of the launcher."""
    return job.process.pid if victim is None else job.processes()[victim]


def wait_for_the_end(job: Job, seconds: float) -> tuple[int, float]:
    """Return the status of the launcher, and how long the last process took to be gone."""
    began = time.monotonic()
    status = job.wait(seconds)
    while job.processes():
        assert time.monotonic() - began < seconds, job.processes()
        time.sleep(0.05)
    return status, time.monotonic() - began


@pytest.mark.parametrize(
    ("launcher", "victim", "number", "statuses"),
    [
        ("--gloo", 1, signal.SIGTERM, range(1, 256)),
        pytest.param("run.sh", None, signal.SIGINT, [130], marks=pytest.mark.thorough),
        pytest.param("--mpi", None, signal.SIGUSR2, [143], marks=pytest.mark.thorough),
    ],
)
def test_a_job_that_is_told_to_ends_after_the_same_update_which_is_saved(
    launcher: str, victim: Optional[int], number: int, statuses: list[int], tmp_path: Path
) -> None:
    with start(launcher, tmp_path, *(["--restarts", 2] if launcher == "run.sh" else [])) as job:
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
@pytest.mark.parametrize(
    ("launcher", "victim", "number", "longest"),
    [
        ("--gloo", 0, signal.SIGKILL, 30),
        ("run.sh", 1, signal.SIGKILL, 30),
        ("--gloo", None, signal.SIGKILL, 30),
        ("--mpi", None, signal.SIGKILL, 30),
        ("run.sh", 1, signal.SIGSTOP, 60),
    ],
)
def test_a_process_that_is_killed_or_hangs_ends_all(
    launcher: str, victim: Optional[int], number: int, longest: int, tmp_path: Path
) -> None:
    hangs = number == signal.SIGSTOP
    with start(launcher, tmp_path, *(["--stall-timeout", 4] if hangs else [])) as job:
        os.kill(pid_of(job, victim), number)
        status, seconds = wait_for_the_end(job, 90)
        assert seconds < longest and (victim is None or status not in (0, 2))
        if hangs:
            said = job.log(0)
            assert re.search("error: rank 0 on .* has made no progress for .*communication", said)
            assert "training/loop.py" in said, "the stacks of all threads"
