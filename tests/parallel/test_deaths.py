"""Whole jobs of classify.py with parameter servers, of which one process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


class Job:
    """Four workers and two servers on this machine."""

    def __init__(
        self,
        folder: Path,
        scheme: str,
        *options: str,
        training: tuple[str, ...] = ENDLESS,
        program: tuple[str, ...] = ("classify.py",),
    ) -> None:
        self.folder, self.output = folder, folder / "output"
        (folder / "groups").write_text(GROUPS)
        if scheme == "dist_gsync":
            options = (*options, "--groups", str(folder / "groups"))
        more = ("--staleness", "3") if scheme == "dist_ssync" else ()
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "parallel.launch", "-n", "4", "-s", "2", *options),
                    *("--", sys.executable, *program, *training, "--kv-store", scheme, *more),
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

    def all_pids(self) -> list[int]:
        """All processes of the job, guards and launcher among them."""
        return [running.pid for running in processes.of_job(self.folder)]

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_until(self, words: str) -> None:
        end = time.monotonic() + 250
        while words not in self.said():
            assert self.process.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.1)

    def ends(self) -> int:
        """The status, after which no process is left."""
        begin = time.monotonic()
        status = self.process.wait(SECONDS)
        print(f"ended after {time.monotonic() - begin:.1f} s with status {status}")
        assert not self.all_pids()
        return status

    def end(self) -> None:
        processes.kill(self.all_pids())
        self.process.wait(SECONDS)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start_job(*arguments: str, until: str = "update 10/", **further: Any) -> Job:
        jobs.append(Job(tmp_path, *arguments, **further))
        jobs[-1].wait_until(until)
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.end()


@pytest.mark.parametrize("scheme", ["dist_sync", "dist_async", "dist_ssync", "dist_gsync"])
@pytest.mark.parametrize(
    ("victim", "named"),
    [
        ("worker-2", "worker 2 on 127.0.0.1"),  # of a group, the leader
        ("worker-3", "worker 3 on 127.0.0.1"),
        ("server", "server "),
        ("scheduler", "scheduler on 127.0.0.1"),
    ],
)
def test_a_killed_process_ends_the_job_and_is_named(start, scheme, victim, named) -> None:
    job = start(scheme)
    job.kill(victim)
    assert job.ends() == 128 + signal.SIGKILL
    (line,) = [line for line in job.said().splitlines() if line.startswith("launch: ")]
    assert line.startswith(f"launch: {named}")
    assert line.endswith("ended with status 137 (SIGKILL); ending the job")


@pytest.mark.parametrize("scheme", ["dist_async", "dist_gsync"])
def test_a_killed_launcher_leaves_no_process(start, scheme) -> None:
    job = start(scheme)
    job.process.kill()
    job.process.wait()
    end = time.monotonic() + SECONDS
    while job.all_pids():
        assert time.monotonic() < end, job.all_pids()
        time.sleep(0.1)


def stop_with_a_checkpoint(job: Job) -> None:
    job.process.send_signal(signal.SIGTERM)
    assert job.ends() == 128 + signal.SIGTERM
    assert list((job.folder / "models" / "checkpoints").glob("update-*/manifest.json")), job.said()


@pytest.mark.parametrize("scheme", ["dist_sync", "dist_async", "dist_gsync"])
def test_a_signal_leaves_a_checkpoint(start, scheme) -> None:
    job = start(scheme)
    assert " classify.py " in holder(job.folder / "models")
    stop_with_a_checkpoint(job)


def test_a_signal_while_a_group_waits_for_the_other(start, tmp_path: Path) -> None:
    """With --rebalance; the second group is slow, and does not wait for the new groups yet."""
    slow = ("-m", "benchmarks.grouping_worker", str(tmp_path), "1,1,8,8")
    training = (*ENDLESS[:5], "6400", *ENDLESS[6:], "--rebalance", "1")
    job = start("dist_gsync", until="update 100/100", training=training, program=slow)
    time.sleep(1)
    assert "epoch 1: training loss" not in job.said()
    stop_with_a_checkpoint(job)


@pytest.mark.parametrize("scheme", ["dist_async", "dist_ssync"])
def test_a_tolerant_job_continues_without_a_dead_worker(start, scheme) -> None:
    # 800 updates of each worker, of which the killed one has done a few.
    short = (*ENDLESS[:5], "12800", *ENDLESS[6:], "--epochs", "4")
    job = start(scheme, "--tolerate-workers", training=short)
    job.kill("worker-2")
    job.wait_until("worker 2 on 127.0.0.1 ended with status 137 (SIGKILL); the job goes on")
    assert job.process.wait(280) == 0, job.said()
    assert "update 800/800" in job.said() and not job.all_pids()
    assert "worker 2 has done nothing for" in job.said()
