"""Jobs with parameter servers over two hosts: as the document types them, refused, or killed."""

import re
import signal
import time

import psutil
import pytest

from tests.hosts import jobs
from tests.hosts.two_hosts import INTERFACES, MARKS
from tests.soak.__main__ import busy_loops

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
    for place, scheme in enumerate(jobs.SCHEMES) for number, victim in enumerate(VICTIMS)
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "active", "names", "options"), [
    ("dist_sync", True, jobs.NAMES, ()),
    ("dist_async", False, jobs.ADDRESSES, ()),
    ("dist_ssync", False, jobs.NAMES, ()),
    ("dist_gsync", True, jobs.ADDRESSES, jobs.GROUPED),
    ("dist_gsync", False, jobs.NAMES, (*jobs.GROUPED, "--data-sharding", "data_sharding")),
])  # fmt: skip
def test_every_scheme_runs_as_it_is_typed(two, project, tmp_path, scheme, active, names, options):
    jobs.write_files(project, names)
    shares = ("--data-allocator", "1") if "--data-sharding" in options else ()
    training = (*jobs.SHORT, *shares, "--models-root", str(tmp_path / "models"))
    words = (scheme, "-i", "eth0", *options)
    result = jobs.run(two, project, *words, active=active, training=training)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "worker 0: " in result.stdout and "epoch 1: training loss" in result.stdout
    assert list((tmp_path / "models").glob("*.params"))


def test_a_run_continues_where_nothing_is_shared(two, project, private) -> None:
    """Worker 0 writes on its host; the other needs a copy, and says so."""
    jobs.write_files(project, jobs.NAMES)
    models = private / "models"
    longer = (*jobs.SHORT, "--models-root", str(models), "--lr", "0.01", "--epochs", "2")

    def train(training: tuple[str, ...], status: int) -> str:
        result = jobs.run(two, project, "dist_async", "-i", "eth0", training=training)
        said = result.stdout + result.stderr
        assert result.returncode == status, said
        return said

    train((*longer, "--epochs", "1"), 0)
    said = train(longer, 2)
    assert "begins with other weights than the other hosts: their --models-root" in said
    two.second.sh('mkdir -p "$1"', models)
    # -O: without the server's part for sftp.
    copy = ("scp", "-O", "-q", "-r", str(models / "checkpoints"), f"host2:'{models}'")
    assert two.run(*copy, folder=project).returncode == 0
    said = train(longer, 0)
    assert "resumed at update" in said and "epoch 2: training loss" in said


@pytest.mark.parametrize("scheme", ["dist_async", "dist_gsync"])
def test_messages_take_the_chosen_interface_alone(two, project, tmp_path, scheme) -> None:
    jobs.write_files(project, jobs.ADDRESSES)
    before = {name: two.first.bytes_sent(name) for name in INTERFACES}
    groups = jobs.GROUPED if scheme == "dist_gsync" else ()
    training = (*jobs.SHORT, "--models-root", str(tmp_path))
    # The names of grouped hosts stand for addresses that ssh does not listen on.
    two.name_on("eth1" if groups else "eth0")
    try:
        result = jobs.run(two, project, scheme, *groups, training=training, NIC="eth1")
    finally:
        two.name_on("eth0")
    assert result.returncode == 0, result.stdout + result.stderr
    sent = {name: two.first.bytes_sent(name) - before[name] for name in INTERFACES}
    # The output of the workers, and what ssh needs to log in, is on the network of its addresses.
    assert sent["eth1"] > 1_000_000 and sent["eth0"] < 200_000, sent


@pytest.mark.cluster
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scheme", jobs.SCHEMES)
def test_every_scheme_learns_mnist(two, project, tmp_path, toolkit_data, scheme) -> None:
    data = ("--dataset", "mnist_cosine", "--data-dir", str(toolkit_data / "mnist"))
    begin = time.monotonic()
    with jobs.Job(two, project, tmp_path, scheme, data) as job:
        assert job.process.wait(1700) == 0, job.said()
    accuracies = [float(word) for word in re.findall(r"best (0\.\d+)", job.said())]
    print(f"{scheme}: {accuracies[-1]} after {time.monotonic() - begin:.0f} s")
    assert accuracies[-1] >= 0.98, job.said()


@pytest.mark.parametrize(("scheme", "victim", "busy"), DEATHS)
def test_a_killed_process_ends_the_job(two, project, tmp_path, scheme, victim, busy) -> None:
    role, place, number, line, expected = VICTIMS[victim]
    with jobs.Job(two, project, tmp_path, scheme) as job:
        job.wait_for("update 10/")
        host = two.all[place]
        killed = jobs.process_of(host, role, number) if role else psutil.Process(job.process.pid)
        if victim == "ssh session":
            # The ssh server's process that serves the connection.
            killed = next(one for one in killed.parents() if one.name().startswith("sshd"))
            assert killed.pid != host.server_pid
        with busy_loops(busy):
            begin = time.monotonic()
            killed.kill()
            seconds = jobs.assert_nothing_left(two, begin)
        status = job.process.wait(jobs.SECONDS)
    print(f"{scheme}, {victim}, {busy} busy loops: gone after {seconds:.1f} s, status {status}")
    announced = [one for one in job.said().splitlines() if one.startswith("launch: ")]
    assert announced == ([line] if line else []), job.said()
    assert status == expected
