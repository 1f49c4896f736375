"""What ``mpirun.py`` gives to Open MPI, and what it refuses; ``test_commands`` has the shell's."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from runtime import loopback
from runtime.errors import UserError
from tests.setup.conftest import loaded
from tests.support.launch import write_program

mpirun = loaded("mpirun")
FILE = b"# ours\r\nip1 slots=3\r\n\nip2 max_slots=9 slots=2\nip3\nlocalhost slots=1\n127.0.0.1\n"
# Answers for all hosts but those in $GONE.
SSH = """\
echo "$*" >>"$HOME/asked"
for word; do [[ $word == true ]] || host=$word; done
[[ " $GONE " != *" $host "* ]] || exit 255
"""


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Start Open MPI with words and only these variables; return its words and its variables."""
    for name, content in {
        "hosts": FILE, "own": b"localhost slots=2\n", "other": b"localhost slots=1\nip1 slots=1\n",
        "bare": b"ip1\nip2\n", "two": b"ip1 slots=two\n", "loopback.so": b"",
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(content)
    write_program(tmp_path / "ssh", SSH)
    write_program(tmp_path / "train", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mpirun, "_is_own", {"localhost", "127.0.0.1"}.__contains__)
    monkeypatch.setattr(loopback, "_LIBRARY", tmp_path / "loopback.so")
    path = f"{tmp_path}:{os.environ['PATH']}"

    def run(words: str, **given: str) -> tuple[str, dict[str, str]]:
        own = {"PATH": path, "HOME": str(tmp_path), "HOST_TIMEOUT": "44"}
        command = ["mpirun.py", "orterun", "-mca", "a", "b", "--", *words.split()]
        monkeypatch.setattr(sys, "argv", command)
        variables = mock.patch.dict(os.environ, {**own, **given}, clear=True)
        with variables, mock.patch.object(os, "execv") as program:
            mpirun.main()
            (name, (_, *found)) = program.call_args.args
            assert name == "orterun"
            return " ".join(found), {**os.environ}

    return run


LISTED = "ip1:3,ip2:2,ip3,localhost:2"
RUN_SH = {"RUN_SH_ATTEMPT": "0"}
# Kubernetes' MPI operator sets it.
DEFAULT = {"OMPI_MCA_orte_default_hostfile": "hosts"}
SENT = {"SEND_VARIABLES": "MINE", "NCCL_DEBUG": "x", "OTHER": "x", "MINE": "x", "OMPI_MCA_a": "x"}


def test_hosts_stand_once_each_in_lists_that_open_mpi_can_read(launch) -> None:
    for words, variables, given in (
        ("-np 2 -hostfile hosts train -H a,,", {}, f"-np 2 -H {LISTED} train -H a,,"),
        ("--machinefile hosts train", {}, f"-H {LISTED} train"),
        # What this program does not know is left to Open MPI.
        ("--default-hostfile hosts train", {}, "--default-hostfile hosts train"),
        ("-H ip1:1,ip1:1, -np 2 train -H a,,", {}, "-H ip1:2 -np 2 train -H a,,"),
        ("-x -H -np 1 -H a:1, p -H ,", {}, "-x -H -np 1 -H a:1 p -H ,"),
        ("-n 1 -H a:1, p : -n 1 --host b:1, q", {}, "-n 1 -H a:1, p : -n 1 --host b:1, q"),
        ("-np 2 -H +n0 train", {}, "-np 2 -H +n0 train"),
        ("train", DEFAULT, "train"),
        # The sum of the slots is run.sh's number of ranks.
        ("--hostfile hosts train", {**RUN_SH, **DEFAULT}, f"-np 8 -H {LISTED} train"),
        ("-H a:2,b train", RUN_SH, "-np 3 -H a:2,b train"),
        ("train", SENT, "train"),
    ):  # fmt: skip
        sent = "-x MINE -x NCCL_DEBUG -x PATH" if variables == SENT else "-x PATH"
        assert launch(words, **variables)[0] == f"-mca a b {sent} {given}"
        assert Path("hosts").read_bytes() == FILE


SLURM = {"SLURM_JOBID": "7", "SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "1(x1),1"}
PLACES = {"PBS_NODEFILE": "other"}


def test_what_cannot_work_is_one_line(launch) -> None:
    for words, variables, reason in (
        # Open MPI answers these with pages of text.
        ("-np 3 -H a:1,b:1 p", {}, "-np 3 is more ranks than the 2 slots of -H a:1,b:1; add slots"),
        ("-np 3 -H a:1,b:1 p", RUN_SH, "NP 3 is more ranks than the 2 slots of HOSTS a:1,b:1; add"),
        ("-np 0 p", {}, "-np '0' is not a number of ranks"),
        ("-H a,,b p", RUN_SH, "HOSTS 'a,,b', host 2: '' is not a host"),
        ("--hostfile two p", {}, "two, line 1: 'ip1 slots=two' is not a host"),
        ("--hostfile . p", {}, "cannot be read as a list of hosts"),
        ("-np 2 -H localhost:2", {}, "there is no program to start"),
        ("-np 1 -H localhost:2 ./none", {}, "'./none' is not a program of this host"),
        ("-np 3 --hostfile bare p", {}, "-np 3 is more ranks than the 2 slots of --hostfile bare"),
        ("-np 3 -H a:2,b:1 p", SLURM, "3 ranks are more than the 2 tasks of Slurm's allocation; a"),
        ("-H a:2,b:1 p", {**SLURM, **RUN_SH}, "as in salloc --ntasks=3, or start fewer"),
        ("-np 4 p", PLACES, "PBS_NODEFILE names other hosts, such as ip1, but this"),
        ("-np 4 p", {"PE_HOSTFILE": "other"}, "PE_HOSTFILE names other hosts, such as ip1"),
        ("p", {"SEND_VARIABLES": "A=1"}, "SEND_VARIABLES: 'A' is not the name of a variable"),
    ):
        with pytest.raises(UserError, match=re.escape(reason)) as raised:
            launch(words, **variables)
        assert len(str(raised.value).splitlines()) == 1


def test_what_works_is_not_refused(launch) -> None:
    for words, variables in (
        ("-np 2 -H a:1 -H b:1 p", {}), ("-np 2 -H a,b p", {}), ("--app programs", {}),
        ("-np 9 -H a:1 p : q", {}), ("-np 3 --oversubscribe -H a:1,b:1 p", {}),
        ("-np 1 -H ip1:2 of-that-host", {}), ("--version", {}),
        ("-np 1 -H localhost:2 --flag-of-another-version none train", {}),
        ("-np 9 -H a p", {"SLURM_JOB_ID": "7"}),
        ("-np 3 -H a:1,b:1 p", {"OMPI_MCA_rmaps_base_oversubscribe": "1"}),
        ("-np 2 -H a:1,b:1 p", SLURM),
        ("-np 3 -H a:2,b:1 p", {**SLURM, "OMPI_MCA_ras": "^slurm"}),
        ("-np 3 -H localhost:3 train", SLURM),
        ("-np 2 -H localhost:2 train", PLACES),
        ("-np 4 p", {"PBS_NODEFILE": "own"}),
        ("--version", PLACES),
    ):  # fmt: skip
        said, found = launch(words, **variables)
        assert said.endswith(words) or "hostfile" in words
        assert found.get("SLURM_IMMEDIATE") == ("44" if "SLURM_JOB_ID" in variables else None)


def test_ranks_of_this_host_need_shared_memory(launch, monkeypatch) -> None:
    usage = SimpleNamespace(free=4 * (4 << 20))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    hosts = "-H localhost:4,ip1:9"
    launch(f"{hosts} train")
    usage.free -= 1
    launch(f"-np 3 {hosts} train")
    with pytest.raises(UserError, match="15 MiB are free in /dev/shm, and 4 ranks .* need 16; rem"):
        launch(f"{hosts} train")
    launch(f"{hosts} train", OMPI_MCA_btl_vader_backing_directory="/tmp")
    launch(f"-mca btl self,tcp {hosts} train")
    usage.free = 0
    launch("-H localhost:1,ip1:9 train")
    monkeypatch.setattr(shutil, "disk_usage", mock.Mock(side_effect=OSError))
    launch(f"{hosts} train")


ONE = "-np 2 -H localhost:1,127.0.0.1:1 train"


def test_the_ports_of_a_job_on_this_host_are_closed(launch) -> None:
    for words, variables, transports in (
        ("-np 2 train", {}, "^tcp"), ("-np 2 --hostfile own train", {}, "^tcp"),
        (ONE, {"SLURM_JOB_ID": "7"}, "^tcp"), ("-np 2 train", {"PBS_JOBID": "7"}, "^tcp"),
        # What the user types or sets of transports stays.
        (f"-mca btl ^openib {ONE}", {"OMPI_MCA_btl": "self,tcp"}, "^openib,tcp"),
        (f"--mca btl ^openib,tcp {ONE}", {}, "^openib,tcp"),
        (f"-mca btl self,vader,tcp {ONE}", {}, "self,vader,tcp"),
        (ONE, {"OMPI_MCA_btl": "^openib"}, "^openib,tcp"),
        (ONE, {"OMPI_MCA_btl": "self,vader"}, "self,vader"),
        # Other hosts, or hosts that may stand elsewhere.
        ("-np 2 --hostfile other train", {}, ""), ("--app programs", {}, ""),
        ("-np 1 -H localhost:1 train : -np 1 -H ip1:1 train", {}, ""),
        ("-np 2 train", {"SLURM_JOB_ID": "7"}, ""), ("-np 2 -H +n0 train", {}, ""),
        ("-np 2 train", {"OMPI_MCA_orte_default_hostfile": "other"}, ""),
        ("-np 2 --default-hostfile other train", {}, ""),
    ):  # fmt: skip
        said, found = launch(words, **variables)
        typed = re.findall(r"mca btl (\S+)", said)
        assert (typed or [found.get("OMPI_MCA_btl", "")])[-1] == transports
        is_closed = bool(transports)
        assert ("loopback.so" in found.get("LD_PRELOAD", "")) == is_closed
        assert (found.get("OMPI_MCA_plm") == "^slurm") == is_closed


SSH_AGENT = {"OMPI_MCA_plm_rsh_agent": "remote-shell"}
THREE = "-H ip1:1,ip2:2,ip3:3 train"


def test_a_restart_leaves_out_hosts_that_do_not_answer(launch, capfd) -> None:
    for words, variables, left in (
        (THREE, {"GONE": "ip2"}, "-np 4 -H ip1:1,ip3:3 train"),
        (f"-np 6 {THREE}", {"GONE": "ip1"}, "-np 5 -H ip2:2,ip3:3 train"),
        (THREE, {}, f"-np 6 {THREE}"),
        # Neither the allocation of a cluster nor another agent is asked.
        (THREE, {"GONE": "ip2", "SLURM_JOB_ID": "7"}, f"-np 6 {THREE}"),
        (THREE, {"GONE": "ip2", "OMPI_MCA_plm_rsh_agent": "k"}, f"-np 6 {THREE}"),
    ):
        said, _ = launch(words, **{**SSH_AGENT, "RUN_SH_ATTEMPT": "1", **variables})
        assert said.endswith(f" {left}")
        line = f"run.sh: {variables.get('GONE')} cannot be reached by ssh; the run goes on without"
        line += f", on {left.split()[3].replace(',', ' ')}\n"
        assert capfd.readouterr().err == ("" if THREE in left else line)


def test_hosts_are_asked_by_ssh_before_a_start(launch, capfd) -> None:
    launch("-mca plm_rsh_args -p -H ip1:1,localhost:1 train", **SSH_AGENT, GONE="other")
    (asked,) = Path("asked").read_text().splitlines()
    assert asked.startswith("-oBatchMode=yes -oConnectTimeout=44 ")
    assert asked.endswith(" -x -p ip1 true")
    # After a file, -H chooses among its hosts.
    launch("-hostfile bare -H ip1 train", **SSH_AGENT, GONE="ip2")
    with pytest.raises(UserError, match="^host ip2: no connection by ssh"):
        launch(THREE, **SSH_AGENT, RUN_SH_ATTEMPT="0", GONE="ip2")
    # A restart tries again later: the network may come back.
    with pytest.raises(SystemExit, match="75"):
        launch("-H ip1:1,ip2:1 train", **SSH_AGENT, RUN_SH_ATTEMPT="1", GONE="ip1 ip2")
    assert capfd.readouterr().err.startswith("run.sh: host ip")
    assert "-oConnectTimeout=30 " in Path("asked").read_text().splitlines()[-1]
