"""The launcher, with small scripts in place of training and of MXNet's servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime import processors
from tests.support import processes
from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[3]
# Each writes its process id into a file of its name, so that the test finds it.
PRESENT = """
import os, pathlib, signal, sys, time
role, worker = os.environ["DMLC_ROLE"], int(os.environ["GROUPING_WORKER"])
name = f"worker-{worker}" if role == "worker" else f"{role}-{os.getpid()}"
path = pathlib.Path(os.environ["PRESENCE"], name)
path.with_suffix(".new").write_text(str(os.getpid()))
path.with_suffix(".new").rename(path)
"""
STAY = PRESENT + "time.sleep(300)"
# It ignores signals and has a child.
STUBBORN = (
    "import subprocess; child = subprocess.Popen(['sleep', '300'])\n"
    + PRESENT
    + "path.with_name(f'child-{worker}').write_text(str(child.pid))\n"
    + "[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM)]\n"
    + "time.sleep(300)"
)
SAVE = PRESENT + (
    "def save(number, _):\n"
    "    time.sleep(1); print('saved', flush=True); os._exit(128 + number)\n"
    "[signal.signal(n, save) for n in (signal.SIGINT, signal.SIGTERM)]\n"
    "path.with_name(f'ready-{worker}').touch()\n"
    "time.sleep(300)"
)


class Dummies:
    """A job of scripts."""

    def __init__(self, folder: Path, worker: str, *options: object, serve: str = STAY, **scheme):
        self.folder = folder / "presence"
        self.folder.mkdir()
        options = options or ("-n", 3, "-s", 2)
        kv_store = scheme.get("kv_store", "dist_async")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.parallel.dummy_job", serve, *map(str, options)),
                *("--", sys.executable, "-c", worker, "--kv-store", kv_store),
                *scheme.get("more", ()),
            ],
            cwd=ROOT,
            env={
                **clean_environment(),
                "PRESENCE": str(self.folder),
                **scheme.get("variables", {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def pids(self) -> dict[str, int]:
        files = (path for path in self.folder.glob("*-*") if path.suffix != ".new")
        return {path.name: int(path.read_text()) for path in files if path.stat().st_size}

    def wait_for(self, *names: str, count: int = 0) -> dict[str, int]:
        end = time.monotonic() + 60
        while True:
            present = {path.name for path in self.folder.iterdir() if path.suffix != ".new"}
            if present.issuperset(names) and len(present) >= count:
                return self.pids()
            assert time.monotonic() < end and self.process.poll() is None, present
            time.sleep(0.02)

    def ends(self, within: float = 60) -> tuple[int, str, str]:
        """Its status, output and errors; no process is left."""
        begin = time.monotonic()
        output, errors = self.process.communicate(timeout=200)
        assert time.monotonic() - begin < within
        assert not processes.left(self.pids().values(), seconds=0.5)
        return self.process.returncode, output, errors


def test_output_has_names_and_the_success_of_all_workers_is_status_0(tmp_path):
    worker = PRESENT + (
        "print('loss', worker)\nprint('look', file=sys.stderr)\nsys.stdout.write('no end of line')"
    )
    status, output, errors = Dummies(tmp_path, worker).ends()
    assert status == 0, errors
    assert sorted(output.splitlines()) == sorted(
        f"worker {k}: {line}" for k in range(3) for line in (f"loss {k}", "no end of line")
    )
    assert sorted(errors.splitlines()) == [f"worker {k}: look" for k in range(3)]


def test_groups_that_make_no_difference_are_a_line(tmp_path):
    groups = tmp_path / "groups"
    groups.write_text("127.0.0.1 127.0.0.1\n127.0.0.1\n")
    job = Dummies(tmp_path, PRESENT, "-n", 3, "-s", 1, "--groups", groups, kv_store="dist_sync")
    line = f"launch: --groups {groups} makes no difference to --kv-store dist_sync\n"
    assert job.ends() == (0, "", line)


def test_every_process_has_its_assignment(tmp_path):
    program = PRESENT + (
        "from parallel.parameter_server.assignment import find\n"
        "print(find(os.environ), os.environ['OMP_NUM_THREADS'])"
    )
    groups, shares = tmp_path / "groups", tmp_path / "data_sharding"
    groups.write_text("127.0.0.1 127.0.0.1\n127.0.0.1\n")
    shares.write_text("0 0.4\n0.4 0.8\n0.8 1\n")
    options: tuple[object, ...] = ("-n", 3, "-s", 1, "--groups", groups, "--data-sharding", shares)
    options += ("--bucket-elements", 5000, "--trace", tmp_path / "trace")
    more = ("--data-allocator", "1")
    job = Dummies(tmp_path, program, *options, serve=program + "\ntime.sleep(300)", more=more)
    _, output, _ = job.ends()
    assert "worker 2: Assignment(role='worker', root_host='127.0.0.1'" in output
    assert "groups=((0, 1), (2,)), shares=(Share(start=0.0, end=0.4), Share(" in output
    threads = max(1, processors.available() // 3)
    last = f"bucket_elements=5000, trace='{tmp_path}/trace') {threads}\n"
    assert output.count(last) >= 3


def test_shares_go_to_the_addresses_as_mxnet_numbers_them_and_are_printed(tmp_path):
    program = PRESENT + (
        "from parallel.parameter_server.assignment import find\n"
        "own = find(os.environ)\n"
        "print(own.node_host, *own.shares[own.worker])"
    )
    hosts, shares = tmp_path / "hosts", tmp_path / "data_sharding"
    # A byte order mark and line ends of Windows; three workers on two lines.
    hosts.write_bytes(b"\xef\xbb\xbf# fast first\r\n127.0.0.10 slots=2\r\n127.0.0.9 slots=1\r\n")
    shares.write_bytes(b"0 0.2\r\n0.2 0.5\r\n0.6 1\r\n")
    options = ("-n", 3, "-H", hosts, "--data-sharding", shares)
    more = ("--data-allocator", "1")
    status, output, errors = Dummies(tmp_path, program, *options, more=more).ends()
    assert status == 0, errors
    assert sorted(output.splitlines()) == [
        "worker 0: 127.0.0.10 0.2 0.5",
        "worker 1: 127.0.0.9 0.0 0.2",
        "worker 2: 127.0.0.10 0.6 1.0",
    ]
    assert errors.splitlines() == [
        f"launch: {hosts} has 2 lines for 3 workers, which take them in turn: 2 on 127.0.0.10, "
        "1 on 127.0.0.9",
        f"launch: worker 1 on 127.0.0.9 reads 0 to 0.2 of the data ({shares}, line 1)",
        f"launch: worker 0 on 127.0.0.10 reads 0.2 to 0.5 of the data ({shares}, line 2)",
        f"launch: worker 2 on 127.0.0.10 reads 0.6 to 1 of the data ({shares}, line 3)",
        f"launch: warning: {shares}: nobody reads 10 % of the data: 0.5 to 0.6",
    ]


def test_shares_of_hosts_with_names_go_by_their_addresses(tmp_path):
    hosts, shares = tmp_path / "hosts", tmp_path / "data_sharding"
    hosts.write_text("localhost\n127.0.0.9\n")
    shares.write_text("0 0.2\n0.2 1\n")
    options = ("-n", 2, "-H", hosts, "--data-sharding", shares)
    status, _, errors = Dummies(tmp_path, PRESENT, *options, more=("--data-allocator", "1")).ends()
    assert status == 0, errors
    assert f"launch: worker 1 on 127.0.0.9 reads 0 to 0.2 of the data ({shares}, line 1)" in errors
    assert f"launch: worker 0 on 127.0.0.1 reads 0.2 to 1 of the data ({shares}, line 2)" in errors


@pytest.mark.parametrize("kv_store", ["dist_sync", "dist_gsync", "dist_async"])
def test_shares_that_differ_in_a_synchronous_group_are_a_warning(tmp_path, kv_store):
    groups, shares = tmp_path / "groups", tmp_path / "data_sharding"
    groups.write_text("127.0.0.1 127.0.0.1\n")
    shares.write_text("0 0.25\n0.25 1\n")
    options = ("-n", 2, "-s", 1, "--groups", groups, "--data-sharding", shares)
    more = ("--data-allocator", "1")
    job = Dummies(tmp_path, PRESENT, *options, kv_store=kv_store, more=more)
    status, _, errors = job.ends()
    assert status == 0
    warning = "as the share of worker 0 has images for: 50 % of the data, the rest of their shares,"
    assert (warning in errors) == (kv_store != "dist_async")


def test_servers_run_on_the_hosts_in_turn_and_speeds_are_in_mxnets_order(tmp_path):
    module = "parallel.parameter_server.assignment"
    program = PRESENT + f"from {module} import find\nprint(find(os.environ))"
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1\n127.0.0.2\n127.0.0.2\n")
    options = ("-n", 3, "-s", 3, "-H", hosts, "--server-speeds", "1,4,1")
    job = Dummies(tmp_path, program, *options, serve=program + "\ntime.sleep(300)")
    _, output, errors = job.ends()
    assert output.count("server_speeds=(4.0, 1.0, 1.0)") >= 3, errors
    assert "worker 2: Assignment(role='worker', root_host='127.0.0.1'" in output
    assert output.count("node_host='127.0.0.2', interface='lo', num_workers=3") >= 2
    assert "worker=2, local_worker=1" in output


def test_servers_run_where_their_file_says(tmp_path):
    """The faster one first, whose number MXNet makes the last."""
    module = "parallel.parameter_server.assignment"
    program = PRESENT + f"from {module} import find\nprint(find(os.environ))"
    (tmp_path / "hosts").write_text("127.0.0.2\n127.0.0.2\n127.0.0.1\n")
    (tmp_path / "servers").write_text("127.0.0.1 4\n127.0.0.2 1\n")
    options = ("-n", 3, "-s", 2, "-H", tmp_path / "hosts", "--server-hosts", tmp_path / "servers")
    job = Dummies(tmp_path, program, *options, serve=program + "\ntime.sleep(300)")
    _, output, errors = job.ends()
    assert output.count("server_speeds=(1.0, 4.0)") >= 3, errors
    begins = "Assignment(role='server', root_host='127.0.0.1'"
    places = [line for line in output.splitlines() if begins in line]
    assert sorted(line.partition(":")[0] for line in places) == ["server 0", "server 1"]
    for line in places:
        address = "127.0.0.1" if line.startswith("server 0: ") else "127.0.0.2"
        assert f"node_host='{address}'" in line


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("sys.exit(3)", 3, "worker 1 on 127.0.0.1 ended with status 3; ending the job"),
        ("os.kill(os.getpid(), 9)", 137, "worker 1 on 127.0.0.1 ended with status 137 (SIGKILL)"),
    ],
)
def test_a_dead_worker_ends_the_job_with_its_status(tmp_path, end, status, said):
    worker = STAY.replace("time.sleep", f"if worker == 1: {end}\ntime.sleep")
    ended, _, errors = Dummies(tmp_path, worker).ends()
    assert ended == status and said in errors


def test_a_process_that_ignores_signals_is_killed_with_its_children(tmp_path):
    job = Dummies(tmp_path, STUBBORN, "-n", 2, "-s", 1)
    pids = job.wait_for("worker-0", "worker-1", "child-0", "child-1", count=6)
    os.kill(pids["worker-0"], signal.SIGKILL)
    assert job.ends()[0] == 137


@pytest.mark.parametrize("role", ["server", "scheduler"])
def test_a_dead_server_ends_even_a_tolerant_job(tmp_path, role):
    job = Dummies(tmp_path, STAY, "-n", 2, "-s", 1, "--tolerate-workers")
    pids = job.wait_for(count=4)
    os.kill(next(pid for name, pid in pids.items() if name.startswith(role)), signal.SIGKILL)
    status, _, errors = job.ends()
    named = "server 0" if role == "server" else "scheduler"
    assert status == 137 and f"{named} on 127.0.0.1 ended with status 137 (SIGKILL)" in errors


def test_a_server_that_ends_early_ends_the_job(tmp_path):
    serve = "import os, time; time.sleep(300 * (os.environ['DMLC_ROLE'] == 'scheduler'))"
    status, _, errors = Dummies(tmp_path, STAY, serve=serve).ends()
    assert status == 1 and "ended with status 0; ending the job" in errors


def test_a_killed_guard_ends_its_process(tmp_path):
    job = Dummies(tmp_path, STAY, "-n", 2, "-s", 1)
    pids = job.wait_for(count=4)
    guard = int(Path(f"/proc/{pids['worker-1']}/stat").read_text().split()[3])
    assert b"parallel.launch.guard" in Path(f"/proc/{guard}/cmdline").read_bytes()
    os.kill(guard, signal.SIGKILL)
    status, _, errors = job.ends()
    assert status == 137 and "worker 1 on 127.0.0.1" in errors


def test_a_killed_launcher_leaves_no_process(tmp_path):
    job = Dummies(tmp_path, STUBBORN, "-n", 2, "-s", 1)
    pids = job.wait_for("worker-0", "worker-1", "child-0", "child-1", count=6)
    job.process.kill()
    job.process.communicate()
    assert not processes.left(pids.values())


def test_a_tolerant_job_continues_and_prints_so(tmp_path):
    worker = PRESENT + "time.sleep(1)\nsys.exit(7 * (worker == 1))"
    status, _, errors = Dummies(tmp_path, worker, "-n", 3, "-s", 1, "--tolerate-workers").ends()
    assert status == 0
    assert "worker 1 on 127.0.0.1 ended with status 7; the job goes on without it" in errors


def test_a_tolerant_job_fails_when_all_its_workers_have(tmp_path):
    worker = PRESENT + "time.sleep(worker); sys.exit(7 + worker)"
    status, _, _ = Dummies(tmp_path, worker, "-n", 2, "-s", 1, "--tolerate-workers").ends()
    assert status == 7


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_lets_the_workers_save(tmp_path, number, status):
    job = Dummies(tmp_path, SAVE)
    job.wait_for("ready-0", "ready-1", "ready-2")
    job.process.send_signal(number)
    ended, output, errors = job.ends()
    assert ended == status and output.count("saved") == 3
    assert errors == f"launch: {number.name}: asking the workers to stop\n"


def test_a_second_signal_ends_at_once(tmp_path):
    job = Dummies(tmp_path, STUBBORN, "-n", 1, "-s", 1)
    job.wait_for("worker-0", "child-0", count=4)
    job.process.send_signal(signal.SIGINT)
    assert job.process.stderr.readline() == "launch: SIGINT: asking the workers to stop\n"
    # As timeout does, which sends its signal to the launcher and to its group. What ends the job
    # waits four seconds for workers that take no SIGTERM.
    job.process.send_signal(signal.SIGINT)
    time.sleep(6)
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGINT)
    assert job.ends(within=15)[0] == 130


def test_a_closed_output_ends_the_job(tmp_path):
    job = Dummies(tmp_path, STAY.replace("time.sleep", "print('x', flush=True)\ntime.sleep"))
    job.process.stdout.close()
    job.process.stdout = None  # nothing for communicate() to read
    job.process.wait(60)
    assert job.process.returncode == 128 + signal.SIGPIPE
    assert not processes.left(job.pids().values(), seconds=0.5)
    job.process.stderr.close()


def test_over_ssh_folder_environment_status_and_signals_arrive(tmp_path):
    # In place of a host: it runs the command as the server of ssh does, by the user's shell.
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        "#!/bin/sh\n"
        'while [ "${1#-o}" != "$1" ]; do echo "$1" >>"$0.options"; shift; done\n'
        'echo "$*" >>"$0.words"\n'
        '[ "$1" = 127.0.0.1 ] && cd / && exec env -u MXNET_KEPT PRESENCE="$PRESENCE" sh -c "$2"\n'
    )
    ssh.chmod(0o755)
    # Before it says that it is ready, and may get a signal.
    worker = "import os\nprint(os.getcwd(), os.environ['MXNET_KEPT'], flush=True)\n" + SAVE
    job = Dummies(
        tmp_path,
        worker,
        *("-n", 2, "-s", 1, "--launcher", "ssh"),
        variables={"PATH": f"{ssh.parent}:{os.environ['PATH']}", "MXNET_KEPT": "it's $HOME"},
    )
    job.wait_for("ready-0", "ready-1")
    job.process.send_signal(signal.SIGTERM)
    status, output, _ = job.ends()
    assert status == 143
    for number in (0, 1):
        assert f"worker {number}: {ROOT} it's $HOME\n" in output
        assert f"worker {number}: saved\n" in output
    assert "-oBatchMode=yes" in ssh.with_name("ssh.options").read_text()
    words = ssh.with_name("ssh.words").read_text()
    assert "parallel.launch.guard" in words
    assert "$HOME" not in words and "DMLC_ROLE=" not in words and "MXNET_KEPT=" not in words


def test_the_port_of_a_line_is_that_of_the_ssh_server(tmp_path):
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        "#!/bin/sh\n"
        'while [ "${1#-o}" != "$1" ]; do shift; done\n'
        '[ "$1 $3" = "-p 127.0.0.1" ] && echo "$2" >>"$0.ports" && exec sh -c "$4"\n'
    )
    ssh.chmod(0o755)
    (tmp_path / "hosts").write_text("127.0.0.1:2222\n127.0.0.1:2223\n")
    worker = PRESENT + "print(os.environ['DMLC_NODE_HOST'], os.environ['GROUPING_LOCAL_WORKER'])"
    variables = {"PATH": f"{ssh.parent}:{os.environ['PATH']}"}
    options = ("-n", 2, "-s", 1, "-H", tmp_path / "hosts", "--launcher", "ssh")
    status, output, errors = Dummies(tmp_path, worker, *options, variables=variables).ends()
    assert (status, errors) == (0, "")
    assert sorted(output.splitlines()) == ["worker 0: 127.0.0.1 0", "worker 1: 127.0.0.1 1"]
    # Both are asked; a server is on the first.
    ports = ssh.with_name("ssh.ports").read_text().split()
    assert sorted(ports) == ["2222"] * 3 + ["2223"] * 2


def test_few_log_in_to_a_host_at_the_same_time(tmp_path):
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        "#!/bin/sh\n"
        'while [ "${1#-o}" != "$1" ]; do shift; done\n'
        'echo in >>"$0.logins"; sleep 0.5; echo out >>"$0.logins"; exec sh -c "$2"\n'
    )
    ssh.chmod(0o755)
    variables = {"PATH": f"{ssh.parent}:{os.environ['PATH']}"}
    options = ("-n", 14, "-s", 1, "--launcher", "ssh")
    status, _, errors = Dummies(tmp_path, PRESENT, *options, variables=variables).ends()
    assert (status, errors) == (0, "")
    logins = ssh.with_name("ssh.logins").read_text().split()
    # The first one asks the host.
    assert logins.count("out") == 16
    waiting = [logins[:end].count("in") - logins[:end].count("out") for end in range(len(logins))]
    assert 1 < max(waiting) <= 8


def test_gpus_that_other_machines_do_not_have_are_refused(tmp_path):
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text('#!/bin/sh\n"no process starts"\n')
    ssh.chmod(0o755)
    variables = {"PATH": f"{ssh.parent}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "GPU-5fa2"}
    options = ("-n", 2, "-s", 1, "--launcher", "ssh")
    status, output, errors = Dummies(tmp_path, STAY, *options, variables=variables).ends()
    assert (status, output, errors.count("\n")) == (2, "", 1)
    assert "error: CUDA_VISIBLE_DEVICES='GPU-5fa2' names GPUs of a single host; with" in errors


@pytest.mark.parametrize(
    ("options", "kv_store", "message"),
    [
        (("-n", 0, "-s", 1), "dist_sync", "-n/--num-workers: '0' is not a positive integer"),
        (("-n", "two", "-s", 1), "dist_sync", "-n/--num-workers: 'two' is not a positive integer"),
        (("-n", "\u0662", "-s", 1), "dist_sync", "-n/--num-workers: '\u0662' is not a positive"),
        (("-n", 2, "-s", 1), "horovod", "--kv-store horovod has no servers"),
        (("-n", 2, "-s", 1), "dist_asinc", "(did you mean 'dist_async'?)"),
        (("-n", 2, "-s", 1), "dist_gsync", "needs --groups FILE; python -m parallel.autogroup"),
        (("-n", 2, "-s", 1, "--tolerate-workers"), "dist_sync", "workers wait for each other"),
        (("-n", 2, "-s", 1, "--data-sharding", "x"), "dist_sync", "add --data-allocator 1"),
        (("-n", 2, "-s", 2, "--server-speeds", "2,1"), "dist_sync", "one machine need the same"),
        (("-n", 2, "-s", 2, "--server-speeds", "2"), "dist_sync", "has 1 numbers, but there are 2"),
        (("-n", 2, "-s", 2, "--server-speeds", "2,0"), "dist_sync", "no list of positive numbers"),
        (("-n", 2, "-s", 2, "--server-speeds", "2,inf"), "dist_sync", "no list of positive numb"),
        (("-n", 2, "-s", 2, "--server-speeds", "2,x"), "dist_sync", "no list of positive numbers"),
        (("-n", 2, "-s", 1, "--bucket-elements", 9), "dist_sync", "9 is not from 1024 (MXNet's"),
        (("-n", 2, "-s", 1, "-i", "ethx"), "dist_sync", "-i ethx: no such network interface"),
        (("-n", 2, "-s", 1, "-H", "/nowhere"), "dist_sync", "/nowhere cannot be read as a list of"),
        (("-n", 2, "-s", 1, "-H", "{far}"), "dist_sync", "host 192.0.2.1 cannot be reached on -i"),
    ],
)
def test_a_mistake_is_one_line_and_starts_no_process(tmp_path, options, kv_store, message):
    (tmp_path / "hosts").write_text("192.0.2.1\n192.0.2.2\n")
    options = [str(tmp_path / "hosts") if word == "{far}" else word for word in options]
    job = Dummies(tmp_path, STAY, *options, kv_store=kv_store)
    status, output, errors = job.ends()
    assert (status, output) == (2, "") and not list(job.folder.iterdir())
    assert errors.count("\n") == 1 and message in errors
