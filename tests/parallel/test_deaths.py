"""Whole jobs of classify.py with parameter servers, of which one process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.launch import clean_environment
from tests.support.locks import holder

pytestmark = pytest.mark.grouping

ROOT = Path(__file__).resolve().parents[2]
# The longest time in which a job may end.
SECONDS = 30
# Hours of small images: the jobs do not end by themselves.
ENDLESS = (
    *("--dataset", "synthetic", "--image-size", "16", "--num-images", "20000"),
    *("--batch-size", "16", "--epochs", "1000", "--frequent", "5", "--eval-frequency", "1000"),
)
GROUPS = "127.0.0.1 127.0.0.1\n127.0.0.1 127.0.0.1\n"
PROGRAM = ("classify.py", *ENDLESS)


class Job:
    """Four workers and two servers on this machine."""

    def __init__(self, folder: Path, scheme: str, *options: str, program: tuple[str, ...]) -> None:
        self.folder, self.output = folder, folder / "output"
        (folder / "groups").write_text(GROUPS)
        if scheme == "dist_gsync":
            options = (*options, "--groups", str(folder / "groups"))
        more = ("--staleness", "3") if scheme == "dist_ssync" else ()
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "parallel.launch", "-n", "4", "-s", "2", *options),
                    *("--", sys.executable, *program, "--kv-store", scheme, *more),
                    *("--models-root", str(folder / "models")),
                ],
                # By this its processes are known.
                env={**clean_environment(), processes.FOLDER: str(folder)},
                cwd=ROOT, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        """The first process of a role, worker-k or server or scheduler, without its guard."""
        for running in processes.of_job(self.folder):
            role = running.variables.get("DMLC_ROLE", "launcher")
            number = running.variables.get("GROUPING_WORKER")
            is_guard = not running.words or "parallel.launch.guard" in running.words
            if not is_guard and name in (role, f"{role}-{number}"):
                os.kill(running.pid, signal.SIGKILL)
                return
        raise AssertionError(f"no {name}")

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_until(self, words: str) -> None:
        end = time.monotonic() + 250
        while words not in self.said():
            assert self.process.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.1)

    def ends(self, seconds: int = SECONDS) -> int:
        """The status, after which no process is left."""
        status = self.process.wait(seconds)
        assert not processes.of_job(self.folder)
        return status


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    jobs: list[Job] = []

    def start_job(
        *arguments: str, until: str = "update 10/", program: tuple[str, ...] = PROGRAM
    ) -> Job:
        jobs.append(Job(tmp_path, *arguments, program=program))
        jobs[-1].wait_until(until)
        return jobs[-1]

    yield start_job
    for job in jobs:
        processes.kill([running.pid for running in processes.of_job(job.folder)])
        job.process.wait(SECONDS)


@pytest.mark.parametrize(
    ("scheme", "victim", "named"),
    [
        ("dist_gsync", "worker-2", "worker 2 on 127.0.0.1"),  # the leader of a group
        ("dist_gsync", "worker-3", "worker 3 on 127.0.0.1"),
        ("dist_sync", "worker-3", "worker 3 on 127.0.0.1"),
        ("dist_async", "server", "server "),
        ("dist_gsync", "server", "server "),
        ("dist_ssync", "scheduler", "scheduler on 127.0.0.1"),
    ],
)
def test_a_killed_process_ends_the_job_and_is_named(
    start: Start, scheme: str, victim: str, named: str
) -> None:
    job = start(scheme)
    job.kill(victim)
    assert job.ends() == 128 + signal.SIGKILL
    (line,) = [line for line in job.said().splitlines() if line.startswith("launch: ")]
    assert line.startswith(f"launch: {named}")
    assert line.endswith("ended with status 137 (SIGKILL); ending the job")


@pytest.mark.parametrize("scheme", ["dist_async", "dist_gsync"])
def test_a_killed_launcher_leaves_no_process(start: Start, scheme: str) -> None:
    job = start(scheme)
    job.process.kill()
    job.process.wait()
    end = time.monotonic() + SECONDS
    while processes.of_job(job.folder):
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("scheme", ["dist_sync", "dist_async", "slow group"])
def test_a_signal_leaves_a_checkpoint(start: Start, scheme: str, tmp_path: Path) -> None:
    """Also with --rebalance while a group waits for the other, which is slow, at an epoch's end."""
    if scheme == "slow group":
        worker = ("-m", "benchmarks.grouping_worker", str(tmp_path), "1,1,8,8")
        slow = (*worker, *ENDLESS, "--num-images", "6400", "--rebalance", "1")
        job = start("dist_gsync", until="update 100/100", program=slow)
        time.sleep(1)
        assert "epoch 1: training loss" not in job.said()
    else:
        job = start(scheme)
        assert " classify.py " in holder(job.folder / "models")
    job.process.send_signal(signal.SIGTERM)
    assert job.ends() == 128 + signal.SIGTERM
    assert list((job.folder / "models" / "checkpoints").glob("update-*/manifest.json")), job.said()


@pytest.mark.parametrize("scheme", ["dist_async", "dist_ssync"])
def test_a_tolerant_job_continues_without_a_dead_worker(start: Start, scheme: str) -> None:
    # 800 updates of each worker, of which the killed one has done a few.
    short = (*PROGRAM, "--num-images", "12800", "--epochs", "4")
    job = start(scheme, "--tolerate-workers", program=short)
    job.kill("worker-2")
    job.wait_until("worker 2 on 127.0.0.1 ended with status 137 (SIGKILL); the job goes on")
    assert job.ends(280) == 0, job.said()
    assert "update 800/800" in job.said() and "worker 2 has done nothing for" in job.said()
