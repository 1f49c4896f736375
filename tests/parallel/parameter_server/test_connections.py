"""Attacks on the ports of whole jobs: the result is the same as without them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from parallel.parameter_server.assignment import KEY
from tests.parallel.parameter_server.test_jobs import check
from tests.support import attacker
from tests.support.servers import ROOT, ServerJob

pytestmark = pytest.mark.launcher

SCRIPT = ["-m", "tests.parallel.parameter_server.scripted_worker"]
# The turn of a worker that does not exist: the others wait until its file is there.
GATE, NOBODY = 3, 9
TURNS = [0, 1, 2, NOBODY, 2, 0, 1]


def ports(job: ServerJob) -> list[str]:
    """Where scheduler, servers and workers listen."""
    pids = {process.pid for process in (*job.workers, *job.others)}
    found = [
        f"{connection.laddr.ip}:{connection.laddr.port}"
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.pid in pids
    ]
    assert len(found) == len(pids)
    return found


@contextmanager
def attack(addresses: list[str], seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Run an attacker, of another user where that is possible, within the context."""
    process = subprocess.Popen(
        [sys.executable, attacker.__file__, str(seconds), *addresses],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.thorough
def test_a_job_under_attack_has_the_result_of_another(tmp_path: Path) -> None:
    profiles = set(ROOT.glob("*.json"))
    with ServerJob(tmp_path / "out", *SCRIPT, tmp_path, *TURNS, workers=3, servers=2) as job:
        job.wait_until(lambda: (tmp_path / "2").exists())
        addresses = ports(job)
        assert all(address.startswith("127.0.0.1:") for address in addresses)
        with attack(addresses, seconds=300) as process:
            assert process.stdout.readline() == "attacked\n"
            # Its many connections stay open while the job goes on.
            time.sleep(2)
            assert process.poll() is None
            assert [one.poll() for one in (*job.workers, *job.others)] == [None] * 6, job.said()
            (tmp_path / str(GATE)).touch()
            assert job.wait() == [0, 0, 0], job.said()
            assert [one.poll() for one in job.others] == [None] * 3, job.said()
        assert "no process of this job" in job.said()
    check(tmp_path, TURNS, NOBODY)
    assert set(ROOT.glob("*.json")) == profiles


@pytest.mark.thorough
def test_a_job_starts_while_its_scheduler_is_attacked(tmp_path: Path) -> None:
    turns = [0, 1]
    with ServerJob(tmp_path / "out", *SCRIPT, tmp_path, *turns, workers=2) as job:
        variables = psutil.Process(job.others[0].pid).environ()
        address = f"127.0.0.1:{variables['DMLC_PS_ROOT_PORT']}"
        with attack([address], seconds=300), attack([address], seconds=300):
            assert job.wait() == [0, 0], job.said()
    assert json.loads((tmp_path / "1").read_text())["version"] == 2


def test_a_process_with_another_key_takes_no_part(tmp_path: Path) -> None:
    """Like a worker of another user's job that was given this scheduler's address."""
    with ServerJob(tmp_path / "out", *SCRIPT, tmp_path, 0, workers=1) as job:
        variables = psutil.Process(job.others[0].pid).environ()
        stranger = subprocess.Popen(
            [sys.executable, "-m", "parallel.parameter_server.serve"], cwd=ROOT, text=True,
            env={**variables, "DMLC_ROLE": "server", KEY: "0" * 64}, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert job.wait() == [0], job.said()
            line = stranger.stderr.readline()
        finally:
            stranger.kill()
            stranger.wait()
            stranger.stderr.close()
    assert "is not a process of this job" in line
