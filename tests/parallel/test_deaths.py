"""Whole jobs of classify.py with parameter servers, of which one process is killed.

More are in launch/test_command.py, and of every scheme and victim in tests/hosts/test_servers.py.
"""

import os
import signal
import sys
import time

import pytest

from tests.support.job import Started, holder

pytestmark = pytest.mark.grouping

SECONDS = 30
# Hours of small images: the jobs do not end by themselves.
ENDLESS = (
    "--dataset synthetic --image-size 16 --num-images 20000 --batch-size 16 --epochs 1000 "
    "--frequent 5 --eval-frequency 1000"
).split()
PROGRAM = ("classify.py", *ENDLESS)


class Job(Started):
    """Four workers and two servers on this machine, some updates after their start."""

    def __init__(self, folder, scheme: str, *options, program=PROGRAM, until="update 10/"):
        (folder / "groups").write_text("127.0.0.1 127.0.0.1\n127.0.0.1 127.0.0.1\n")
        if scheme == "dist_gsync":
            options = (*options, "--groups", str(folder / "groups"))
        super().__init__(
            folder, sys.executable, "-m", "parallel.launch", "-n", 4, "-s", 2, *options, "--",
            sys.executable, *program, "--kv-store", scheme, "--models-root", folder / "models",
        )  # fmt: skip
        try:
            self.wait_until(lambda: until in self.said(), 250)
        except BaseException:
            self.end()
            raise

    def kill(self, name: str) -> None:
        for running in self.running():
            role = running.variables.get("DMLC_ROLE", "launcher")
            number = running.variables.get("GROUPING_WORKER")
            is_guard = not running.words or "parallel.launch.guard" in running.words
            if not is_guard and name in (role, f"{role}-{number}"):
                os.kill(running.pid, signal.SIGKILL)
                return
        raise AssertionError(f"no {name}")

    def ends(self, seconds: int = SECONDS) -> int:
        status = self.wait(seconds)
        assert not self.running()
        return status


@pytest.mark.parametrize(
    ("scheme", "victim"),
    # Of a group, the leader.
    [("dist_gsync", "worker-2"), ("dist_async", "server")],
)
def test_a_killed_process_ends_the_job_and_is_named(tmp_path, scheme, victim) -> None:
    with Job(tmp_path, scheme) as job:
        job.kill(victim)
        assert job.ends() == 128 + signal.SIGKILL
        (line,) = [line for line in job.said().splitlines() if line.startswith("launch: ")]
    assert line.startswith(f"launch: {victim.replace('-', ' ')}")
    assert line.endswith("on 127.0.0.1 ended with status 137 (SIGKILL); ending the job")


@pytest.mark.parametrize("scheme", ["dist_sync", "dist_gsync"])
def test_a_signal_leaves_a_checkpoint(scheme: str, tmp_path) -> None:
    """Also with --rebalance while a group waits for the other, which is slow, at an epoch's end."""
    slow = ("-m", "benchmarks.grouping_worker", str(tmp_path), "1,1,8,8", *ENDLESS)
    options: dict = {}
    if scheme == "dist_gsync":
        program = (*slow, "--num-images", "6400", "--rebalance", "1")
        options = {"program": program, "until": "update 100/100"}
    with Job(tmp_path, scheme, **options) as job:
        if scheme == "dist_gsync":
            time.sleep(1)
            assert "epoch 1: training loss" not in job.said()
        else:
            assert " classify.py " in holder(tmp_path / "models")
        job.process.send_signal(signal.SIGTERM)
        assert job.ends() == 128 + signal.SIGTERM
        saved = (tmp_path / "models" / "checkpoints").glob("update-*/manifest.json")
        assert list(saved), job.said()


def test_a_tolerant_job_continues_without_a_dead_worker(tmp_path) -> None:
    # 800 updates of each worker, of which the killed one has done a few.
    short = (*PROGRAM, "--num-images", "12800", "--epochs", "4", "--staleness", "3")
    with Job(tmp_path, "dist_ssync", "--tolerate-workers", program=short) as job:
        job.kill("worker-2")
        dead = "worker 2 on 127.0.0.1 ended with status 137 (SIGKILL); the job goes on"
        job.wait_until(lambda: dead in job.said())
        assert job.ends(280) == 0, job.said()
        assert "update 800/800" in job.said()
