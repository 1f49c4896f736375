"""Jobs with parameter servers over two hosts: as the document types them, and what is refused."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from parallel.parameter_server.assignment import KEY
from tests.support import attacker, hosts
from tests.support.hosts import INTERFACES
from tests.support.server_job import (
    ADDRESSES,
    GROUPED,
    NAMES,
    PROGRAMS,
    ROOT,
    SCHEMES,
    SECONDS,
    SHORT,
    Job,
    run,
    wait_until,
    write_files,
)

WHY_NOT = hosts.missing()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
    pytest.mark.usefixtures("nothing_is_left"),
]


@pytest.mark.parametrize(
    ("scheme", "active", "names", "options"),
    [
        ("dist_sync", True, NAMES, ()),
        ("dist_async", False, ADDRESSES, ()),
        ("dist_ssync", False, NAMES, ()),
        ("dist_gsync", True, ADDRESSES, GROUPED),
        ("dist_gsync", False, NAMES, (*GROUPED, "--data-sharding", "data_sharding")),
    ],
)
def test_every_scheme_runs_as_it_is_typed(
    two, project, tmp_path, scheme, active, names, options
) -> None:
    write_files(project, names)
    shares = ("--data-allocator", "1") if "--data-sharding" in options else ()
    training = (*SHORT, *shares, "--models-root", str(tmp_path / "models"))
    result = run(two, project, scheme, "-i", "eth0", *options, active=active, training=training)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "worker 0: " in result.stdout and "epoch 1: training loss" in result.stdout
    assert list((tmp_path / "models").glob("*.params"))


@pytest.mark.parametrize("scheme", ["dist_sync", "dist_async", "dist_ssync"])
def test_an_attack_from_another_host_ends_no_job_and_finds_no_key(
    two, project, tmp_path, scheme
) -> None:
    job = Job(two, project, tmp_path, scheme)
    try:
        wait_until(job.process, job.output, "update 10/")
        # Of the scheduler, two servers and four workers, on the interface of their addresses.
        ports = [
            at
            for host in two.all
            for at in subprocess.check_output(host.inside("ss", "-ltnH"), text=True).split()
            if at.startswith(host.address) and not at.endswith(":22")
        ]
        assert len(ports) == 7
        running = [psutil.Process(pid) for host in two.all for pid in host.processes()]
        keys = {key for one in running if (key := one.environ().get(KEY))}
        (key,) = keys
        assert not any(key in word for one in running for word in one.cmdline())
        for host in two.all:
            command = host.inside(sys.executable, attacker.__file__, "5", *ports)
            assert subprocess.run(command, timeout=200, check=False).returncode == 0
        before = job.said().count(" update ")
        end = time.monotonic() + 60
        while job.said().count(" update ") < before + 4:
            assert job.process.poll() is None and time.monotonic() < end, job.said()
            time.sleep(0.1)
        assert "no process of this job" in job.said()
        job.process.send_signal(signal.SIGINT)
        assert job.process.wait(SECONDS) == 130, job.said()
    finally:
        job.end()


def test_a_run_continues_where_nothing_is_shared(two, project, tmp_path) -> None:
    """Worker 0 writes on its host; the other needs a copy, and says so."""
    write_files(project, NAMES)
    models = tmp_path / "models"
    models.mkdir()
    training = (*SHORT, "--models-root", str(models), "--lr", "0.01")
    longer = (*training, "--epochs", "2")
    subprocess.run(two.second.inside("mount", "-t", "tmpfs", "tmpfs", str(models)), check=True)
    try:
        first = run(two, project, "dist_async", "-i", "eth0", training=training)
        assert first.returncode == 0, first.stdout + first.stderr
        second = run(two, project, "dist_async", "-i", "eth0", training=longer)
        assert second.returncode == 2, second.stdout + second.stderr
        assert (
            "begins with other weights than the other hosts: their --models-root" in second.stderr
        )
        # -O: without the server's part for sftp.
        copy = ("scp", "-O", "-q", "-r", str(models / "checkpoints"), f"host2:{models}")
        assert two.run(*copy, folder=project).returncode == 0
        third = run(two, project, "dist_async", "-i", "eth0", training=longer)
        assert third.returncode == 0, third.stdout + third.stderr
        assert "resumed at update" in third.stdout and "epoch 2: training loss" in third.stdout
    finally:
        subprocess.run(two.second.inside("umount", str(models)), check=True)


@pytest.mark.parametrize("scheme", ["dist_async", "dist_gsync"])
def test_messages_take_the_chosen_interface_alone(two, project, tmp_path, scheme) -> None:
    write_files(project, ADDRESSES)
    before = {name: two.first.bytes_sent(name) for name in INTERFACES}
    groups = GROUPED if scheme == "dist_gsync" else ()
    training = (*SHORT, "--models-root", str(tmp_path))
    # The names of grouped hosts stand for addresses that ssh does not listen on.
    two.name_on("eth1" if groups else "eth0")
    try:
        result = run(two, project, scheme, *groups, training=training, NIC="eth1")
    finally:
        two.name_on("eth0")
    assert result.returncode == 0, result.stdout + result.stderr
    sent = {name: two.first.bytes_sent(name) - before[name] for name in INTERFACES}
    # The output of the workers, and what ssh needs to log in, is on the network of its addresses.
    assert sent["eth1"] > 1_000_000 and sent["eth0"] < 200_000, sent


# The host on which a fault begins and ends, by scripts; options; what the one line says.
FAULTS: dict[str, tuple[int, str, str, tuple[str, ...], tuple[str, ...]]] = {
    "a refused key": (
        0, "mv {keys}/key.pub {keys}/kept; touch {keys}/key.pub", "mv {keys}/kept {keys}/key.pub",
        (), ("host host1: no connection by ssh (", "Permission denied",
             "it has to work without a question: ssh -oBatchMode=yes host1 true"),
    ),
    "no project": (
        1, "mount -t tmpfs tmpfs '{project}'", "umount '{project}'",
        (), ("host host2: ", "No module named 'parallel'",
             "every host needs the project and its environment in the same folders as here"),
    ),
    "a host that lacks the interface": (
        0, "ip link add eth2 type bridge; ip addr add 10.79.0.1/24 dev eth2", "ip link del eth2",
        ("-i", "eth2"), ("host host2: -i eth2: no such network interface",),
    ),
    "groups of another interface": (
        0, "true", "true", ("-i", "eth1", *GROUPED),
        ("host host1: the groups of dist_gsync connect at the address of the host's own name, ",
         "there 10.77.0.1, which is not 10.78.0.1 on -i eth1; change it in the hosts files"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_host_that_cannot_be_used_is_named(two, project, name: str) -> None:
    place, begins, ends, options, words = FAULTS[name]
    write_files(project, NAMES)

    def on_host(script: str) -> None:
        script = script.format(keys=two.folder, project=project)
        subprocess.run(two.all[place].inside("sh", "-c", script), check=True)

    scheme = "dist_gsync" if "--groups" in options else "dist_async"
    start = time.monotonic()
    on_host(begins)
    try:
        result = run(two, project, scheme, *(options or ("-i", "eth0")))
    finally:
        on_host(ends)
    assert (result.returncode, result.stdout) == (2, ""), result
    assert result.stderr.startswith(f"error: {words[0]}") and result.stderr.count("\n") == 1
    assert [word for word in words if word not in result.stderr] == [], result.stderr
    assert time.monotonic() - start < SECONDS


def test_as_many_workers_as_a_host_of_gpus_has_log_in(two, project) -> None:
    """An ssh server refuses the eleventh connection that has not logged in."""
    (project / "hosts").write_text("host1\n" + 16 * "host2\n")
    options = ("-n", "17", "-s", "1", "-H", "hosts", "-i", "eth0", "--launcher", "ssh")
    result = two.run(
        "python", "-m", "tests.parallel.dummy_job", "import time; time.sleep(300)", *options,
        "--", "echo", "in", "--kv-store", "dist_async", folder=project, path=[PROGRAMS],
        PYTHONPATH=str(ROOT),
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(": in --kv-store dist_async\n") == 17


@pytest.mark.cluster
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_learns_mnist(two, project, tmp_path, toolkit_data, scheme) -> None:
    data = ("--dataset", "mnist_cosine", "--data-dir", str(toolkit_data / "mnist"))
    begin = time.monotonic()
    job = Job(two, project, tmp_path, scheme, data)
    try:
        assert job.process.wait(1700) == 0, job.said()
    finally:
        job.end()
    accuracies = [float(word) for word in re.findall(r"best (0\.\d+)", job.said())]
    print(f"{scheme}: {accuracies[-1]} after {time.monotonic() - begin:.0f} s")
    assert accuracies[-1] >= 0.98, job.said()
