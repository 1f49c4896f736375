"""Whatever process of a job with parameter servers is killed, nothing is left on either host."""

from __future__ import annotations

import signal
import time

import psutil
import pytest

from tests.soak.soak import busy_loops
from tests.support.hosts import MARKS
from tests.support.server_job import SCHEMES, SECONDS, Job, assert_nothing_left, process_of

pytestmark = [*MARKS, pytest.mark.usefixtures("nothing_is_left")]
KILLED = "ended with status 137 (SIGKILL); ending the job"
BROKEN = "ended with status 255 (ssh: no connection, or one that broke); ending the job"
# Role, host and number of the victim, how the launcher's line names it, and its status.
VICTIMS = {
    "worker here": ("worker", 0, 1, f"launch: worker 1 on host1 {KILLED}", 137),
    "worker there": ("worker", 1, 3, f"launch: worker 3 on host2 {KILLED}", 137),
    "server": ("server", 1, 0, f"launch: server 1 on host2 {KILLED}", 137),
    "scheduler": ("scheduler", 0, 0, f"launch: scheduler on 10.77.0.1 {KILLED}", 137),
    "ssh session": ("worker", 1, 2, f"launch: worker 2 on host2 {BROKEN}", 255),
    "launcher": ("", 0, 0, "", -signal.SIGKILL),
}
# Each scheme and victim, in turn on a quiet and a busy machine; most for ``make cluster``.
DEATHS = [
    pytest.param(
        scheme, victim, 2 * ((place + number) % 2),
        marks=() if scheme == "dist_gsync" or victim == "worker there" else pytest.mark.cluster,
    )
    for place, scheme in enumerate(SCHEMES) for number, victim in enumerate(VICTIMS)
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "victim", "busy"), DEATHS)
def test_a_killed_process_ends_the_job_on_both_hosts(
    two, project, tmp_path, scheme, victim, busy
) -> None:
    role, place, number, line, expected = VICTIMS[victim]
    with Job(two, project, tmp_path, scheme) as job:
        job.wait_for("update 10/")
        host = two.all[place]
        killed = process_of(host, role, number) if role else psutil.Process(job.process.pid)
        if victim == "ssh session":
            # The ssh server's process that serves the connection.
            killed = next(one for one in killed.parents() if one.name().startswith("sshd"))
            assert killed.pid != host.server_pid
        with busy_loops(busy):
            begin = time.monotonic()
            killed.kill()
            seconds = assert_nothing_left(two, begin)
        status = job.process.wait(SECONDS)
    print(f"{scheme}, {victim}, {busy} busy loops: gone after {seconds:.1f} s, status {status}")
    announced = [one for one in job.said().splitlines() if one.startswith("launch: ")]
    assert announced == ([line] if line else []), job.said()
    assert status == expected
