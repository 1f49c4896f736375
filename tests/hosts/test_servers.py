"""Jobs with parameter servers over two hosts: as the document types them, and what is refused."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest

from parallel.parameter_server.assignment import KEY
from tests.support import attacker
from tests.support.hosts import INTERFACES, TwoHosts
from tests.support.server_job import (
    ADDRESSES,
    GROUPED,
    NAMES,
    SCHEMES,
    SECONDS,
    SHORT,
    Job,
    run,
    wait_until,
    write_files,
)

pytestmark = pytest.mark.usefixtures("nothing_is_left")


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


def test_an_attack_from_another_host_ends_no_job_and_finds_no_key(two, project, tmp_path) -> None:
    job = Job(two, project, tmp_path, "dist_async")
    try:
        wait_until(job.process, job.output, "update 10/")
        ports = []
        for host in two.all:
            lines = subprocess.check_output(host.inside("ss", "-ltnH"), text=True).splitlines()
            addresses = [line.split()[3] for line in lines]
            # Of the first interface, but for the ssh server's.
            ports += [one for one in addresses if re.match(rf"{host.address}:(?!22$)", one)]
        # The scheduler, two servers and four workers.
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


@pytest.mark.parametrize("scheme", ["dist_async", "dist_gsync"])
def test_messages_take_the_chosen_interface_alone(two, project, tmp_path, scheme) -> None:
    write_files(project, ADDRESSES)
    before = {name: two.first.bytes_sent(name) for name in INTERFACES}
    # The groups' names then stand for addresses that ssh does not listen on.
    two.name_on("eth1" if scheme == "dist_gsync" else "eth0")
    groups = GROUPED if scheme == "dist_gsync" else ()
    training = (*SHORT, "--models-root", str(tmp_path))
    result = run(two, project, scheme, *groups, training=training, NIC="eth1")
    two.name_on("eth0")
    assert result.returncode == 0, result.stdout + result.stderr
    sent = {name: two.first.bytes_sent(name) - before[name] for name in INTERFACES}
    # The output of the workers, and what ssh needs to log in, is on the network of its addresses.
    assert sent["eth1"] > 1_000_000 and sent["eth0"] < 200_000, sent


def refused(two: TwoHosts, project: Path, *options: str, scheme: str = "dist_async") -> str:
    """The one line of a job that does not start."""
    begin = time.monotonic()
    result = run(two, project, scheme, *options)
    assert (result.returncode, result.stdout) == (2, ""), result
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.stderr
    assert time.monotonic() - begin < SECONDS
    return result.stderr


def test_interfaces_that_do_not_go_together_are_named(two, project) -> None:
    write_files(project, NAMES)
    line = refused(two, project, "-i", "eth1", *GROUPED, scheme="dist_gsync")
    assert line == (
        "error: host host1: the groups of dist_gsync connect at the address of the host's own "
        "name, there 10.77.0.1, which is not 10.78.0.1 on -i eth1; change it in the hosts files\n"
    )
    two.second.ip("link", "set", "eth1", "down")
    try:
        line = refused(two, project, "-i", "eth1")
    finally:
        two.second.ip("link", "set", "eth1", "up")
    assert "host host2: its address 10.78.0.2 on eth1 does not reach the launcher's, 10.78" in line


@contextmanager
def hanging_server(two: TwoHosts) -> Iterator[None]:
    os.kill(two.second.ssh_server, signal.SIGSTOP)
    yield
    os.kill(two.second.ssh_server, signal.SIGCONT)


@pytest.mark.parametrize(
    ("fault", "host", "reason"),
    [
        (hanging_server, "host2", "Connection timed out during banner exchange"),
        (nullcontext, "10.77.0.9", "ssh: connect to host 10.77.0.9 port"),
    ],
)
def test_a_host_that_ssh_does_not_reach_is_named(two, project, fault, host, reason) -> None:
    write_files(project, (ADDRESSES[0], host) if host == "10.77.0.9" else NAMES)
    with fault(two):
        line = refused(two, project, "-i", "eth0")
    assert line.startswith(f"error: host {host}: no connection by ssh (") and reason in line
    assert line.endswith(f"it has to work without a question: ssh -oBatchMode=yes {host} true\n")


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
