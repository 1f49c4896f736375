from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import pytest

from tests.setup.conftest import LAUNCHER, REAL, SETTINGS

if TYPE_CHECKING:
    from tests.setup.conftest import Sandbox

ROOT = Path(__file__).resolve().parents[2]


def mpirun_arguments(sandbox: Sandbox) -> list[str]:
    """Return the arguments of the one call of mpirun, those that run.sh gives it."""
    (call,) = [line for line in sandbox.calls.splitlines() if line.startswith("mpirun ")]
    return ["-np", *call.partition(" -np ")[2].split()]


def variables_sent(sandbox: Sandbox) -> list[str]:
    """Return what the one call of mpirun sends to ranks on other hosts."""
    return re.findall(r" -x (\S+)", sandbox.calls)


def test_run_starts_two_ranks_on_this_host(sandbox: Sandbox) -> None:
    result = sandbox.run("bash", "run.sh", "--max-update", "20")
    assert result.returncode == 0, result.stderr
    arguments = mpirun_arguments(sandbox)
    assert arguments[:4] == ["-np", "2", "-H", "localhost:2"]
    config = f"{sandbox.folder}/config.sh"
    assert arguments[-4:] == ["bash", config, "--max-update", "20"]
    for flags in ("-bind-to none -map-by slot", "-mca pml ob1 -mca btl ^openib"):
        assert flags in " ".join(arguments)
    assert variables_sent(sandbox) == ["PATH"]


def test_run_takes_hosts_and_a_hostfile(sandbox: Sandbox) -> None:
    sandbox.run("bash", "run.sh", NP="16", HOSTS="ip1:8,ip2:8")
    assert mpirun_arguments(sandbox)[:4] == ["-np", "16", "-H", "ip1:8,ip2:8"]
    assert mpirun_arguments_with(sandbox, HOSTS="ip1:8,ip2")[:4] == ["-np", "9", "-H", "ip1:8,ip2"]
    (sandbox.folder / "hosts.txt").write_text("# ours\nip1 slots=3\n\nip2 max_slots=9 slots=2\nip3")
    found = mpirun_arguments_with(sandbox, NP="4", HOSTFILE="hosts.txt")
    assert found[:3] == ["-np", "4", "--hostfile"]
    assert file_of_mpirun(sandbox) == ["ip1 slots=3", "ip2 slots=2", "ip3 slots=1"]
    assert mpirun_arguments_with(sandbox, HOSTFILE="hosts.txt")[:2] == ["-np", "6"]
    # Of Kubernetes' MPI operator; Open MPI's word for none is no file.
    default = {"OMPI_MCA_orte_default_hostfile": "hosts.txt"}
    assert mpirun_arguments_with(sandbox, **default)[:3] == ["-np", "6", "--hostfile"]
    assert "-H ip1:2" in " ".join(mpirun_arguments_with(sandbox, HOSTS="ip1:2", **default))
    default = {"OMPI_MCA_orte_default_hostfile": "none"}
    assert "-H localhost:2" in " ".join(mpirun_arguments_with(sandbox, **default))


def file_of_mpirun(sandbox: Sandbox) -> list[str]:
    """Return the lines of the file of hosts that mpirun got."""
    (line,) = [line for line in sandbox.calls.splitlines() if line.startswith("file ")]
    return line.removeprefix("file ").split("|")


# Open MPI answers these files with pages of text, or reads them otherwise. More are in
# tests/parallel/test_host_lists.py.
SPELLINGS = {
    "ends of lines": b"ip1 slots=2\r\nip2 slots=3\r\n",
    "one host by two names": b"ip1 slots=2\nip2 slots=3\nlocalhost slots=1\n127.0.0.1 slots=1\n",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_mpirun_gets_a_file_that_it_can_read(sandbox: Sandbox, spelling: str) -> None:
    """From run.sh and from the user; the original file stays as it is."""
    file = sandbox.folder / "hosts"
    file.write_bytes(SPELLINGS[spelling])
    expected = ["ip1 slots=2", "ip2 slots=3", *(["localhost slots=2"] if "two" in spelling else [])]
    ranks = str(len(expected) * 2 + 1)
    assert mpirun_arguments_with(sandbox, HOSTFILE="hosts")[:2] == ["-np", ranks]
    assert file_of_mpirun(sandbox) == expected
    for option in ("-hostfile", "--machinefile", "--default-hostfile"):
        result = sandbox.run("bash", LAUNCHER, "-np", "2", option, "hosts", "train", option, "own")
        assert result.returncode == 0, result.stderr
        assert file_of_mpirun(sandbox) == expected
        assert sandbox.calls.splitlines()[0].endswith(f"/proc/self/fd/3 train {option} own")
    parameter = ("orte_default_hostfile", "hosts")
    for words, variables in (
        (("--default-hostfile", "hosts"), {}), (("-mca", *parameter), {}),
        ((), {"OMPI_MCA_orte_default_hostfile": "hosts"}),
    ):  # fmt: skip
        result = sandbox.run("bash", LAUNCHER, "-np", "2", *words, "train", **variables)
        assert result.returncode == 0, result.stderr
        assert " /proc/self/fd/3 " in sandbox.calls and " hosts " not in sandbox.calls
    assert file.read_bytes() == SPELLINGS[spelling]


def test_mpirun_gets_a_list_that_it_can_read(sandbox: Sandbox) -> None:
    found = mpirun_arguments_with(sandbox, HOSTS=" ip1:2, ip2 ,ip1:1,")
    assert found[:4] == ["-np", "4", "-H", "ip1:3,ip2"]
    for option in ("-H", "-host", "--host"):
        sandbox.run("bash", LAUNCHER, option, "ip1:1,ip1:1,", "-np", "2", "train", option, "a,,")
        assert sandbox.calls.endswith(f" {option} ip1:2 -np 2 train {option} a,,\n")


def test_programs_with_lists_of_their_own(sandbox: Sandbox) -> None:
    words = "-x -H -np 1 -H a:1, p -H , : -n 1 -H b:1, q"
    assert sandbox.run("bash", LAUNCHER, *words.split()).returncode == 0
    assert sandbox.calls.endswith(" -x -H -np 1 -H a:1 p -H , : -n 1 -H b:1 q\n")


@pytest.mark.parametrize(("name", "ranks"), [("host_8", 8), ("host_16", 16)])
def test_run_takes_the_examples_of_hostfiles(sandbox: Sandbox, name: str, ranks: int) -> None:
    """At the place where the original has them, by its command as well."""
    (sandbox.folder / "hosts").mkdir()
    shutil.copy(ROOT / "hosts" / name, sandbox.folder / "hosts")
    found = mpirun_arguments_with(sandbox, HOSTFILE=f"hosts/{name}")
    assert found[:3] == ["-np", str(ranks), "--hostfile"]
    slots = file_of_mpirun(sandbox)
    assert sum(int(line.partition("=")[2]) for line in slots) == ranks
    words = f"-np {ranks} -hostfile hosts/{name} --allow-run-as-root -bind-to none -map-by slot "
    words += "-mca pml ob1 -mca btl ^openib -mca btl_tcp_if_include eth0 -x OMP_NUM_THREADS=2 "
    assert sandbox.run("bash", LAUNCHER, *f"{words}bash config.sh".split()).returncode == 0
    assert file_of_mpirun(sandbox) == slots


def mpirun_arguments_with(sandbox: Sandbox, **variables: str) -> list[str]:
    result = sandbox.run("bash", "run.sh", **variables)
    assert result.returncode == 0, result.stderr
    return mpirun_arguments(sandbox)


@pytest.mark.parametrize(
    "variables",
    [{"NP": "two"}, {"NP": "0"}, {"HOSTS": "a,,b"}, {"HOSTFILE": "two"},
     {"HOSTS": "a:2", "HOSTFILE": "one"}, {"HOSTS": "a:2,b:1", "NP": "4"},
     {"HOSTFILE": "bare", "NP": "3"}],
    ids=str,
)  # fmt: skip
def test_run_refuses_wrong_hosts(sandbox: Sandbox, variables: dict[str, str]) -> None:
    (sandbox.folder / "one").write_text("ip1 slots=2\r\n")
    (sandbox.folder / "two").write_text("ip1 slots=two\n")
    (sandbox.folder / "bare").write_text("ip1\nip2\n")
    result = sandbox.run("bash", "run.sh", "--restarts", "3", **variables)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("error: ")
    assert any(name in result.stderr for name in (*variables, *variables.values()))
    assert not sandbox.calls


@pytest.mark.parametrize(
    ("words", "is_refused"),
    [
        ("-np 3 -H a:1,b:1", True),
        ("-n 3 --host a,b:1", True),
        ("-np 5 -H a:1 -H b:1", True),
        ("-np 2 -H a:1 -H b:1", False),
        ("-np 9 -hostfile hosts", False),
        ("-np 2 --default-hostfile .", True),
        ("-np 2 --default-hostfile none", False),
        ("-np 3 --oversubscribe -H a:1,b:1", False),
        ("-np 3 --map-by slot:OVERSUBSCRIBE -H a:1,b:1", False),
        ("-np 3 --nooversubscribe -H a:1,b:1", True),
        ("-np x -H a:1", True),
        ("-np 2 --hostfile .", True),
        ("-np 0 -H a:1", True),
        ("-np 1 --host=a:1", True),
        ("--np=1 -H a:1", True),
        ("-np 1 -hostfile hosts -H b", True),
        ("-np 1 -hostfile hosts -H a", False),
        ("-np 1 -hostfile hosts -H 127.0.0.1", False),
    ],
)
def test_mpirun_refuses_what_open_mpi_answers_with_pages(
    sandbox: Sandbox, words: str, is_refused: bool
) -> None:
    (sandbox.folder / "hosts").write_text("a\nlocalhost\n")
    result = sandbox.run("bash", LAUNCHER, *words.split(), "true")
    assert result.returncode == (2 if is_refused else 0), result.stderr
    assert len(result.stderr.splitlines()) == is_refused == (not sandbox.calls)


ALLOCATION = {"SLURM_JOBID": "7", "SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "1(x2)"}


@pytest.mark.parametrize(
    ("variables", "is_refused"),
    [
        ({"HOSTS": "a:2,b:1"}, True),
        ({"HOSTS": "a:1,b:1"}, False),
        ({"HOSTS": "a:2,b:1", "OMPI_MCA_ras": "^slurm"}, False),
        ({"NP": "3"}, False),
    ],
)
def test_run_refuses_more_ranks_than_slurm_has_tasks(
    sandbox: Sandbox, variables: dict[str, str], is_refused: bool
) -> None:
    """On other hosts: Open MPI starts them as Slurm has granted, others of this host as usual."""
    result = sandbox.run("bash", "run.sh", **ALLOCATION, **variables)
    assert result.returncode == (2 if is_refused else 0), result.stderr
    assert result.stderr == is_refused * (
        "error: 3 ranks are more than the 2 tasks of Slurm's allocation; ask for as many, as in "
        "salloc --ntasks=3, or start fewer\n"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "there is no program to start"),
        ("-np 2 -H localhost:2", "there is no program to start"),
        ("-np 2 -H localhost:2 nothing-of-this-name x", "'nothing-of-this-name' is not a program"),
        ("-np 1 -H localhost:2 bash : -np 1 ./nothing", "'./nothing' is not a program"),
        ("-np 1 -H localhost:2 bash -x", ""),
        ("-np 1 -H ip1:2 of-that-host", ""),
        ("-np 1 -H localhost:2 -wdir / bin/true", ""),
        ("--version", ""),
        ("--app programs", ""),
        ("-np 1 -H localhost:2 --flag-of-another-version bash -x", ""),
        ("-np 1 -H localhost:2 --flag-of-another-version bash nothing", ""),
    ],
)
def test_mpirun_names_a_program_that_is_missing(sandbox: Sandbox, words: str, reason: str) -> None:
    result = sandbox.run("bash", LAUNCHER, *words.split())
    assert result.returncode == (2 if reason else 0), result.stderr
    assert reason in result.stderr and len(result.stderr.splitlines()) == bool(reason)
    assert bool(sandbox.calls) == (not reason)


@pytest.mark.parametrize("variable", ["PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE"])
def test_hosts_of_another_batch_system_are_not_left_out(sandbox: Sandbox, variable: str) -> None:
    (sandbox.folder / "nodes").write_text("localhost 2\na 2\n")
    words, given = ("bash", LAUNCHER, "-np", "4"), {variable: str(sandbox.folder / "nodes")}
    result = sandbox.run(*words, "true", **given)
    assert result.returncode == 2 and not sandbox.calls
    assert result.stderr.startswith(f"error: {variable} names other hosts, such as a, but this")
    (sandbox.folder / "nodes").write_text("localhost 2\nlocalhost 2\n")
    assert sandbox.run(*words, "true", **given).returncode == 0


def test_a_place_for_output_that_is_none(sandbox: Sandbox) -> None:
    (sandbox.folder / "log.txt").write_text("kept")
    for place in ("log.txt", "log.txt/inner:nocopy", "/proc/x"):
        words = ("bash", LAUNCHER, "-np", "1", "--output-filename", place, "true")
        result = sandbox.run(*words)
        assert result.returncode == 2 and not sandbox.calls
        name = place.partition(":")[0]
        assert result.stderr.startswith(f"error: --output-filename {name} is no folder, and cannot")
        assert len(result.stderr.splitlines()) == 1
    assert (sandbox.folder / "log.txt").read_text() == "kept"


def test_run_passes_choices_and_settings_to_the_other_hosts(sandbox: Sandbox) -> None:
    choices = {"NETWORK": "r50", "NCCL_DEBUG": "INFO", "UNRELATED": "x"}
    sandbox.run("bash", "run.sh", **choices)
    assert variables_sent(sandbox) == ["NCCL_DEBUG", "NETWORK", "PATH"]
    sandbox.run("bash", "run.sh", SEND_VARIABLES="UNRELATED", **choices)
    assert variables_sent(sandbox) == ["NCCL_DEBUG", "NETWORK", "PATH", "UNRELATED"]
    result = sandbox.run("bash", "run.sh", SEND_VARIABLES="OTHER=1")
    assert result.returncode == 2 and sandbox.calls == ""
    assert result.stderr.startswith("error: SEND_VARIABLES: 'OTHER' is not the name of a variable;")
    assert len(result.stderr.splitlines()) == 1


PASSED = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE"]


@pytest.mark.parametrize(
    ("shown", "others", "passed"),
    [
        ("2,3", {}, PASSED),
        ("2,3", {"HOSTS": "ip1:2,ip2:2"}, PASSED),
        ("", {"HOSTS": "ip1:2,ip2:2"}, PASSED),
        ("-1", {"HOSTS": "ip1:2,ip2:2"}, PASSED),
        ("GPU-5fa2,GPU-77", {}, PASSED),
        ("GPU-5fa2", {"HOSTS": "localhost:2"}, PASSED),
        ("GPU-5fa2", {"SLURM_JOB_ID": "7", "HOSTS": "ip1:2,ip2:2"}, PASSED[::2]),
        ("0,1", {"SLURM_JOB_ID": "7"}, PASSED[::2]),
        ("GPU-5fa2,GPU-77", {"HOSTS": "ip1:2,ip2:2"}, None),
        ("MIG-5fa2", {"HOSTFILE": "hosts"}, None),
        ("0,GPU-5fa2", {"HOSTFILE": "hosts"}, None),
    ],
)
def test_run_tells_all_hosts_which_gpus_ranks_see(
    sandbox: Sandbox, shown: str, others: dict[str, str], passed: Optional[list[str]]
) -> None:
    """Unless Slurm tells each host its own; a GPU's UUID names nothing on another host."""
    (sandbox.folder / "hosts").write_text("ip1 slots=2\nip2 slots=2\n")
    gpus = {"CUDA_VISIBLE_DEVICES": shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    result = sandbox.run("bash", "run.sh", **gpus, NVIDIA_TF32_OVERRIDE="0", **others)
    if passed is None:
        assert result.returncode == 2 and sandbox.calls == ""
        assert result.stderr.startswith(f"error: CUDA_VISIBLE_DEVICES='{shown}' names GPUs of a ")
        assert len(result.stderr.splitlines()) == 1
        return
    assert result.returncode == 0, result.stderr
    assert sorted(set(variables_sent(sandbox)) & set(PASSED)) == passed


def test_mpirun_names_the_daemon_of_other_hosts(sandbox: Sandbox) -> None:
    sandbox.run("bash", LAUNCHER, "-np", "2", "true", LD_LIBRARY_PATH="/a b")
    guard = f"bash {sandbox.folder}/setup-utils/launchers/remote-guard 120"
    agent = f"-mca orte_launch_agent {guard} env LD_LIBRARY_PATH=/a\\ b {sandbox.stubs}/orted"
    assert sandbox.calls.startswith(f"mpirun {agent} ")


def test_one_prefix_of_open_mpi_on_all_hosts(sandbox: Sandbox) -> None:
    """That of the path in which it is called, not of the one behind links as orterun sets it."""
    sandbox.stub("orterun", "#!/usr/bin/env bash\nexit 1\n")
    sandbox.stub("orterun_wrapper", '#!/usr/bin/env bash\necho "$OPAL_PREFIX $*"\n')
    link = sandbox.folder / "link"
    link.symlink_to(sandbox.stubs)
    path = f"{link}:{sandbox.stubs}:/usr/bin:/bin"
    result = sandbox.run("bash", LAUNCHER, "-np", "2", "true", PATH=path)
    assert result.stdout.startswith(f"{link} "), result.stderr
    assert f"env OPAL_PREFIX={link} {link}/orted" in result.stdout


@pytest.mark.parametrize("wrong", ["5", "2 minutes", "-20", "100000"])
def test_a_time_for_hosts_that_is_none_is_refused(sandbox: Sandbox, wrong: str) -> None:
    for command in (LAUNCHER, "run.sh", "setup-utils/launchers/horovodrun"):
        result = sandbox.run("bash", command, HOST_TIMEOUT=wrong)
        assert result.returncode == 2 and sandbox.calls == ""
        assert result.stderr.startswith(f"error: HOST_TIMEOUT='{wrong}' is not a number of seconds")
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("variables", "agent"),
    [({}, "remote-shell"), ({"OMPI_MCA_plm_rsh_agent": "/etc/kubexec.sh"}, "/etc/kubexec.sh")],
)
def test_the_program_that_reaches_other_hosts_can_be_chosen(
    sandbox: Sandbox, variables: dict[str, str], agent: str
) -> None:
    sandbox.stub("orterun", '#!/usr/bin/env bash\nenv >>"$CALLS"\n')
    result = sandbox.run("bash", LAUNCHER, "-np", "2", "true", **variables)
    assert result.returncode == 0, result.stderr
    assert f"OMPI_MCA_plm_rsh_agent={agent}\n" in sandbox.calls
    assert ("OMPI_MCA_plm_rsh_no_tree_spawn=1" in sandbox.calls) == (agent == "remote-shell")


def test_launchers_in_an_environment_find_it_by_themselves(sandbox: Sandbox) -> None:
    programs = sandbox.folder / ".venv/bin"
    programs.mkdir(parents=True)
    for name in ("mpirun", "horovodrun"):
        (programs / name).symlink_to(f"../../setup-utils/launchers/{name}")
    (programs / "python").write_text(f'{REAL}echo "$PATH: $*" >>"$CALLS"\n')
    (programs / "python").chmod(0o755)
    sandbox.stub("orterun", '#!/usr/bin/env bash\necho "$PATH: $*" >>"$CALLS"\n')
    for name in ("mpirun", "horovodrun"):
        result = sandbox.run(f"{programs}/{name}", "-np", "2", "a b")
        assert result.returncode == 0, result.stderr
        # mpirun finds its remote shell there.
        added = f":{sandbox.folder}/setup-utils/launchers" if name == "mpirun" else ""
        assert sandbox.calls.startswith(f"{programs}:{sandbox.stubs}{added}: ")
        assert sandbox.calls.endswith(" -np 2 a b\n")


def test_the_interface_is_handed_to_all_that_communicate(sandbox: Sandbox) -> None:
    sandbox.stub("orterun", '#!/usr/bin/env bash\nenv >>"$CALLS"\necho "$*" >>"$CALLS"\n')
    result = sandbox.run("bash", LAUNCHER, "-np", "2", "true", NIC="lo")
    assert result.returncode == 0, result.stderr
    for name in (
        *("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"),
        *("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"),
    ):
        assert f"\n{name}=lo\n" in f"\n{sandbox.calls}"
    # Open MPI itself sends its own.
    assert {"NIC", "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"} < set(variables_sent(sandbox))


@pytest.mark.parametrize(
    ("options", "variables", "leaves_out"),
    [
        ((), {}, True),
        (("-mca", "btl", "^openib"), {}, True),
        (("-mca", "btl_tcp_if_include", "eth0"), {}, False),
        ((), {"NIC": "lo"}, False),
        ((), {"OMPI_MCA_btl_tcp_if_include": "eth0"}, False),
    ],
)
def test_bridges_of_containers_are_left_out_unless_interfaces_are_chosen(
    sandbox: Sandbox, options: tuple[str, ...], variables: dict[str, str], leaves_out: bool
) -> None:
    sandbox.stub("orterun", '#!/usr/bin/env bash\nenv >>"$CALLS"\n')
    result = sandbox.run("bash", LAUNCHER, "-np", "2", *options, "true", **variables)
    assert result.returncode == 0, result.stderr
    found = re.findall("^OMPI_MCA_btl_tcp_if_exclude=(.*)$", sandbox.calls, re.MULTILINE)
    assert ["docker0" in names for names in found] == ([True] if leaves_out else [])


@pytest.mark.parametrize(
    "interface",
    ["eth77", "lo,eth0", "../net/lo", ".", "lo/", " ", "l" * 300],
)
def test_an_interface_that_is_none_is_refused(sandbox: Sandbox, interface: str) -> None:
    for command in (LAUNCHER, "run.sh", "setup-utils/launchers/horovodrun"):
        result = sandbox.run("bash", command, NIC=interface)
        assert result.returncode == 2 and sandbox.calls == ""
        assert result.stderr.startswith(f"error: NIC='{interface[:80]}': ")
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        ("run.sh", {"NP": "2\n3"}),
        ("run.sh --restarts x\x1b[31m", {}),
        ("run.sh", {"HOSTS": "a\nb", "HOSTFILE": "f"}),
        (LAUNCHER, {"NIC": "lo\n\x1b[31m"}),
    ],
    ids=["ranks", "restarts", "both", "interface"],
)
def test_a_mistake_is_one_line_whatever_it_quotes(
    sandbox: Sandbox, words: str, variables: dict[str, str]
) -> None:
    result = sandbox.run("bash", *words.split(" "), **variables)
    assert result.returncode == 2 and "\x1b" not in result.stderr
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1


def test_run_does_not_let_ranks_connect_by_gloo(sandbox: Sandbox) -> None:
    sandbox.stub("orterun", '#!/usr/bin/env bash\necho "${HOROVOD_CONTROLLER:-unset}"\n')
    assert sandbox.run("bash", "run.sh", HOROVOD_CONTROLLER="gloo").stdout == "unset\n"


def test_run_without_mpirun_says_what_to_do(sandbox: Sandbox) -> None:
    (sandbox.stubs / "orterun").unlink()
    result = sandbox.run("bash", "run.sh")
    assert result.returncode == 2
    assert result.stderr == "error: Open MPI's orterun not found: run 'make env' first\n"


@pytest.mark.parametrize("active", [None, "VIRTUAL_ENV", "CONDA_PREFIX"])
def test_the_projects_environment_is_used_unless_another_is_active(
    sandbox: Sandbox, active: Optional[str]
) -> None:
    programs = sandbox.folder / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(SETTINGS + 'echo "from .venv" >>"$CALLS"\n')
    (programs / "python").chmod(0o755)
    variables = {active: "/elsewhere"} if active else {}
    sandbox.run("bash", "config.sh", **variables)
    assert ("from .venv" in sandbox.calls) == (active is None)
