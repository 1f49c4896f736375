"""Whatever process of a job with parameter servers is killed, nothing is left on either host."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.soak.soak import busy_loops
from tests.support import hosts
from tests.support.hosts import Host, TwoHosts
from tests.support.server_job import (
    SCHEMES,
    SECONDS,
    Job,
    assert_nothing_left,
    process_of,
    wait_until,
)

WHY_NOT = hosts.missing()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
    pytest.mark.usefixtures("nothing_is_left"),
]


def session_of(process: psutil.Process, host: Host) -> psutil.Process:
    """The ssh server's process that serves the connection by which a process was started."""
    sessions = [one for one in process.parents() if one.name().startswith("sshd")]
    assert sessions[0].pid != host.ssh_server
    return sessions[0]


def victim_of(two: TwoHosts, job: Job, name: str) -> tuple[psutil.Process, str]:
    """The process to kill, and how the launcher's line names it."""
    killed = "ended with status 137 (SIGKILL); ending the job"
    if name == "worker on the first host":
        return process_of(two.first, "worker", 1), f"launch: worker 1 on host1 {killed}"
    if name == "worker on the second host":
        return process_of(two.second, "worker", 3), f"launch: worker 3 on host2 {killed}"
    if name == "server":
        return process_of(two.second, "server"), f"launch: server 1 on host2 {killed}"
    if name == "scheduler":
        return process_of(two.first, "scheduler"), f"launch: scheduler on 10.77.0.1 {killed}"
    if name == "ssh session":
        worker = process_of(two.second, "worker", 2)
        broken = "ended with status 255 (ssh: no connection, or one that broke); ending the job"
        return session_of(worker, two.second), f"launch: worker 2 on host2 {broken}"
    assert name == "launcher"
    return psutil.Process(job.process.pid), ""


VICTIMS = (
    *("worker on the first host", "worker on the second host", "server", "scheduler"),
    *("ssh session", "launcher"),
)


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
        process, line = victim_of(two, job, victim)
        with busy_loops(busy):
            begin = time.monotonic()
            process.kill()
            seconds = assert_nothing_left(two, begin)
        status = job.process.wait(SECONDS)
    finally:
        job.end()
    print(f"{scheme}, {victim}, {busy} busy loops: gone after {seconds:.1f} s, status {status}")
    announced = [one for one in job.said().splitlines() if one.startswith("launch: ")]
    assert announced == ([line] if line else []), job.said()
    expected = {"launcher": -signal.SIGKILL, "ssh session": 255}
    assert status == expected.get(victim, 128 + signal.SIGKILL)
