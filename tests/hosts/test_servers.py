"""Jobs with parameter servers over two hosts: as the document types them, and what is refused."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Callable

import psutil
import pytest

from parallel.launch.data_sharding import read_shares
from parallel.parameter_server.assignment import KEY
from tests.support import attacker, hosts
from tests.support.hosts import INTERFACES, Host, TwoHosts
from tests.support.server_job import (
    ADDRESSES,
    GROUPED,
    NAMES,
    PRODUCT,
    PROGRAMS,
    ROOT,
    SCHEMES,
    SECONDS,
    SHORT,
    Job,
    processes_of,
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


@contextmanager
def changed(path: Path, old: str, new: str) -> Iterator[None]:
    """Another content of a file that ssh reads."""
    kept = path.read_text()
    path.write_text(kept.replace(old, new))
    yield
    path.write_text(kept)


@contextmanager
def during(begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    begin()
    try:
        yield
    finally:
        end()


def mounted(two: TwoHosts, project: Path) -> AbstractContextManager[None]:
    """An empty folder in place of the second host's project."""

    def on_second(*words: object) -> Callable[[], object]:
        return lambda: subprocess.run(two.second.inside(*words, project), check=True)

    return during(on_second("mount", "-t", "tmpfs", "tmpfs"), on_second("umount"))


NO_LOGIN = "no connection by ssh ("
Fault = Callable[[TwoHosts, Path], AbstractContextManager[None]]
FAULTS: dict[str, tuple[Fault, Sequence[str], Sequence[str]]] = {
    "an unknown host key": (
        # As ssh is installed: with BatchMode it does not ask.
        lambda two, _: changed(
            two.folder / "ssh_config", "known_hosts\nStrictHostKeyChecking no", "nothing"
        ),
        (), (f"host host1: {NO_LOGIN}Host key verification failed.",),
    ),
    "a refused key": (
        lambda two, _: changed(two.folder / "key.pub", "ssh-ed25519", "#"),
        (), (f"host host1: {NO_LOGIN}", "Permission denied"),
    ),
    "a link that is down": (
        lambda two, _: during(lambda: two.second.ip("link", "set", "eth0", "down"),
                              lambda: two.second.ip("link", "set", "eth0", "up")),
        (), (f"host host2: {NO_LOGIN}ssh: connect to host host2 port 22: ",
             "it has to work without a question: ssh -oBatchMode=yes host2 true\n"),
    ),
    "a server that hangs": (
        lambda two, _: during(lambda: os.kill(two.second.server_pid, signal.SIGSTOP),
                              lambda: os.kill(two.second.server_pid, signal.SIGCONT)),
        (), (f"host host2: {NO_LOGIN}", "Connection timed out during banner exchange"),
    ),
    "no project": (
        mounted, (), ("host host2: ", "No module named 'parallel'",
                      "every host needs the project and its environment in the same folders as"),
    ),
    "a host that lacks the interface": (
        lambda two, _: during(lambda: (two.first.ip("link", "add", "eth2", "type", "bridge"),
                                       two.first.ip("addr", "add", "10.79.0.1/24", "dev", "eth2")),
                              lambda: two.first.ip("link", "del", "eth2")),
        ("-i", "eth2"), ("host host2: -i eth2: no such network interface",),
    ),
    "a host that does not reach the launcher": (
        lambda two, _: during(lambda: two.second.ip("link", "set", "eth1", "down"),
                              lambda: two.second.ip("link", "set", "eth1", "up")),
        ("-i", "eth1"),
        ("host host2: its address 10.78.0.2 on eth1 does not reach the launcher's, 10.78",),
    ),
    "groups of another interface": (
        lambda *_: nullcontext(), ("-i", "eth1", *GROUPED),
        ("host host1: the groups of dist_gsync connect at the address of the host's own name, ",
         "there 10.77.0.1, which is not 10.78.0.1 on -i eth1; change it in the hosts files"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_host_that_cannot_be_used_is_named(two, project, name: str) -> None:
    fault, options, words = FAULTS[name]
    write_files(project, NAMES)
    begin = time.monotonic()
    with fault(two, project):
        scheme = "dist_gsync" if "--groups" in options else "dist_async"
        result = run(two, project, scheme, *(options or ("-i", "eth0")))
    assert (result.returncode, result.stdout) == (2, ""), result
    assert result.stderr.startswith(f"error: {words[0]}") and result.stderr.count("\n") == 1
    assert [word for word in words if word not in result.stderr] == [], result.stderr
    assert time.monotonic() - begin < SECONDS


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


@contextmanager
def slowed(host: Host, share: float) -> Iterator[None]:
    """Let the workers of a host run for a share of the time, and behind all other processes.

    Where others load the processors, a process that was stopped catches up: it needs both.
    """
    over = threading.Event()

    def stop_and_continue() -> None:
        while not over.is_set():
            workers = [one for number in range(4) for one in processes_of(host, "worker", number)]
            for worker in workers:
                for thread_id in Path(f"/proc/{worker.pid}/task").glob("*"):
                    with suppress(ProcessLookupError):
                        os.setpriority(os.PRIO_PROCESS, int(thread_id.name), 10)
            for _ in range(10):
                for number, seconds in ((signal.SIGSTOP, 1 - share), (signal.SIGCONT, share)):
                    for worker in workers:
                        with suppress(psutil.NoSuchProcess):
                            worker.send_signal(number)
                    over.wait(0.2 * seconds)

    thread = threading.Thread(target=stop_and_continue)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def own_copy(host: Host, project: Path) -> Iterator[None]:
    """The product in the folder of the project on a host, which no other sees."""
    script = 'mount -t tmpfs tmpfs "$0" && cd "$1" && shift && cp -a "$@" "$0"'
    subprocess.run(host.inside("sh", "-c", script, project, ROOT, *PRODUCT), check=True)
    yield
    left_there = subprocess.check_output(host.inside("ls", "-A", project), text=True).split()
    subprocess.run(host.inside("umount", project), check=True)
    assert sorted(left_there) == sorted(PRODUCT)


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_autogroup_gives_a_slow_host_a_group_of_its_own(two, project, tmp_path) -> None:
    write_files(project, ("10.77.0.2", "host1"))
    # In turn, so that the groups are not the order of the workers.
    (project / "hosts").write_text("10.77.0.2\nhost1\n10.77.0.2\nhost1\n")
    images = "--dataset synthetic --image-size 28 --num-images 40000 --batch-size 256".split()
    # Nothing is shared, and worker 0 is on the other host.
    output = tmp_path / "output"
    with own_copy(two.second, project), output.open("w") as file:
        process = two.start(
            "python", "-m", "parallel.autogroup", "-n", "4", "-s", "1", "-H", "hosts", "-i", "eth0",
            "--launcher", "ssh", "--", "python", "classify.py", *images,
            folder=project, path=[PROGRAMS], stdout=file, stderr=file,
        )  # fmt: skip
        wait_until(process, output, "files in")
        with slowed(two.second, 0.2):
            process.wait(250)
    said = output.read_text()
    assert process.returncode == 0 and "written: groups, data_sharding, servers\n" in said, said
    groups = (project / "groups").read_text().splitlines()
    # On a machine with other work, the workers of the fast host may differ as well.
    assert groups[-1].split() == ["10.77.0.2", "10.77.0.2"], said
    # Of host1, which ``hosts`` names, by its address.
    addresses = ("10.77.0.2", "10.77.0.1", "10.77.0.2", "10.77.0.1")
    shares = read_shares(project / "data_sharding", addresses).of_workers
    sizes = [end - start for start, end in shares]
    assert sizes[0] == pytest.approx(sizes[2])
    assert min(sizes[1], sizes[3]) > 1.5 * sizes[0], said
    assert not list(project.glob(".autogroup-*"))
    training = (*SHORT, "--data-allocator", "1", "--models-root", str(tmp_path))
    options = ("-i", "eth0", *GROUPED, "--data-sharding", "data_sharding")
    result = run(two, project, "dist_gsync", *options, training=training)
    assert result.returncode == 0, result.stdout + result.stderr


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
