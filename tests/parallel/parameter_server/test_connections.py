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

from tests.parallel.parameter_server.test_jobs import SCRIPT, check
from tests.support import attacker
from tests.support.job import ServerJob
from tests.support.launch import ROOT
from tests.support.processes import listeners

pytestmark = [pytest.mark.launcher, pytest.mark.thorough]

# The turn of a worker that does not exist: the others wait until its file is there.
GATE, NOBODY = 3, 9
TURNS = [0, 1, 2, NOBODY, 2, 0, 1]


@contextmanager
def attack(addresses: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run an attacker, of another user where that is possible, within the context."""
    command = [sys.executable, attacker.__file__, "300", *addresses]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_job_under_attack_has_the_result_of_another(tmp_path: Path) -> None:
    profiles = set(ROOT.glob("*.json"))
    with ServerJob(tmp_path / "out", *SCRIPT, tmp_path, *TURNS, workers=3, servers=2) as job:
        job.wait_until(lambda: (tmp_path / "2").exists())
        everyone = (*job.workers, *job.others)
        places = [place for process in everyone for place in listeners(process.pid)]
        assert len(places) == 6 and {address for address, _ in places} == {"127.0.0.1"}
        with attack([f"{address}:{port}" for address, port in places]) as process:
            assert process.stdout.readline() == "attacked\n"
            # Its many connections stay open while the job goes on.
            time.sleep(2)
            assert process.poll() is None
            assert [one.poll() for one in everyone] == [None] * 6, job.said()
            (tmp_path / str(GATE)).touch()
            assert job.wait() == [0, 0, 0], job.said()
            assert [one.poll() for one in job.others] == [None] * 3, job.said()
        assert "no process of this job" in job.said()
    check(tmp_path, TURNS, NOBODY)
    assert set(ROOT.glob("*.json")) == profiles


def test_a_job_starts_while_its_scheduler_is_attacked(tmp_path: Path) -> None:
    with ServerJob(tmp_path / "out", *SCRIPT, tmp_path, 0, 1, workers=2) as job:
        port = psutil.Process(job.others[0].pid).environ()["DMLC_PS_ROOT_PORT"]
        with attack([f"127.0.0.1:{port}"]), attack([f"127.0.0.1:{port}"]):
            assert job.wait() == [0, 0], job.said()
    assert json.loads((tmp_path / "1").read_text())["version"] == 2
