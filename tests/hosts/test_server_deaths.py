"""Whatever process of a job with parameter servers is killed, nothing is left on either host."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.soak.soak import busy_loops
from tests.support.hosts import TwoHosts
from tests.support.server_job import (
    SCHEMES,
    SECONDS,
    Job,
    assert_nothing_left,
    process_of,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("nothing_is_left")


KILLED = "ended with status 137 (SIGKILL); ending the job"
BROKEN = "ended with status 255 (ssh: no connection, or one that broke); ending the job"
# By victim: its host, role and number, and how the launcher's line names it.
VICTIMS = {
    "worker on the first host": (0, "worker", 1, f"launch: worker 1 on host1 {KILLED}"),
    "worker on the second host": (1, "worker", 3, f"launch: worker 3 on host2 {KILLED}"),
    "server": (1, "server", 0, f"launch: server 1 on host2 {KILLED}"),
    "scheduler": (0, "scheduler", 0, f"launch: scheduler on 10.77.0.1 {KILLED}"),
    "ssh session": (1, "worker", 2, f"launch: worker 2 on host2 {BROKEN}"),
    "launcher": (0, "worker", 0, ""),
}


def victim_of(two: TwoHosts, job: Job, name: str) -> psutil.Process:
    if name == "launcher":
        return psutil.Process(job.process.pid)
    host, role, number, _ = VICTIMS[name]
    process = process_of(two.all[host], role, number)
    if name != "ssh session":
        return process
    # The ssh server's process that serves the connection by which it was started.
    session = next(one for one in process.parents() if one.name().startswith("sshd"))
    assert session.pid != two.all[host].ssh_server
    return session


def deaths() -> Iterator[object]:
    """Each scheme and victim, in turn on a quiet and a busy machine; most for ``make cluster``."""
    for place, scheme in enumerate(SCHEMES):
        for number, victim in enumerate(VICTIMS):
            is_quick = scheme == "dist_gsync" or victim == "worker on the second host"
            marks = [] if is_quick else [pytest.mark.cluster]
            yield pytest.param(scheme, victim, 2 * ((place + number) % 2), marks=marks)


@pytest.mark.parametrize(("scheme", "victim", "busy"), deaths())
def test_a_killed_process_ends_the_job_on_both_hosts(
    two, project, tmp_path, scheme, victim, busy
) -> None:
    job = Job(two, project, tmp_path, scheme)
    try:
        wait_until(job.process, job.output, "update 10/")
        process = victim_of(two, job, victim)
        with busy_loops(busy):
            begin = time.monotonic()
            process.kill()
            seconds = assert_nothing_left(two, begin)
        status = job.process.wait(SECONDS)
    finally:
        job.end()
    print(f"{scheme}, {victim}, {busy} busy loops: gone after {seconds:.1f} s, status {status}")
    line = VICTIMS[victim][-1]
    announced = [one for one in job.said().splitlines() if one.startswith("launch: ")]
    assert announced == ([line] if line else []), job.said()
    expected = {"launcher": -signal.SIGKILL, "ssh session": 255}
    assert status == expected.get(victim, 128 + signal.SIGKILL)
