"""What run.sh and the launchers give to Open MPI, and what they refuse before."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import pytest

from tests.setup.conftest import LAUNCHER, REAL, SETTINGS, assert_one_line

if TYPE_CHECKING:
    from tests.setup.conftest import Sandbox

ROOT = Path(__file__).resolve().parents[2]
HOROVODRUN = "setup-utils/launchers/horovodrun"
ENVIRONMENT = '#!/usr/bin/env bash\nenv >>"$CALLS"\necho "mpirun $*" >>"$CALLS"\n'


def run(sandbox: Sandbox, **variables: str) -> str:
    """Run run.sh and return the arguments that it gives to mpirun."""
    result = sandbox.run("bash", "run.sh", "--max-update", "20", **variables)
    assert result.returncode == 0, result.stderr
    (call,) = re.findall("^mpirun .* (-np .*)", sandbox.calls, re.MULTILINE)
    return str(call)


def launch(sandbox: Sandbox, *words: str, **variables: str) -> str:
    """Run the launcher mpirun and return the calls of Open MPI's program."""
    result = sandbox.run("bash", LAUNCHER, *words, **variables)
    assert result.returncode == 0, result.stderr
    return sandbox.calls


def hosts_in_file(sandbox: Sandbox) -> list[str]:
    """Return the lines of the file of hosts that mpirun got."""
    (line,) = re.findall("^file (.*)", sandbox.calls, re.MULTILINE)
    return str(line).split("|")


def variables_sent(sandbox: Sandbox) -> list[str]:
    """Return what the one call of mpirun sends to ranks on other hosts."""
    return re.findall(r" -x (\S+)", sandbox.calls)


def test_run_starts_two_ranks_on_this_host(sandbox: Sandbox) -> None:
    call = run(sandbox)
    assert call.startswith("-np 2 -H localhost:2 -bind-to none -map-by slot ")
    assert " -mca pml ob1 -mca btl ^openib" in call
    assert call.endswith(f"bash {sandbox.folder}/config.sh --max-update 20")
    assert variables_sent(sandbox) == ["PATH"]


FILE = b"# ours\r\nip1 slots=3\r\n\nip2 max_slots=9 slots=2\nip3\nlocalhost slots=1\n127.0.0.1\n"


def test_hosts_and_files_of_hosts(sandbox: Sandbox) -> None:
    """Open MPI gets hosts once each, in a file that it can read; the original stays as it is."""
    file = sandbox.folder / "hosts"
    file.write_bytes(FILE)
    assert run(sandbox, NP="16", HOSTS="ip1:8,ip2:8").startswith("-np 16 -H ip1:8,ip2:8 ")
    assert run(sandbox, HOSTS=" ip1:2, ip2 ,ip1:1,").startswith("-np 4 -H ip1:3,ip2 ")
    expected = ["ip1 slots=3", "ip2 slots=2", "ip3 slots=1", "localhost slots=2"]
    assert run(sandbox, NP="4", HOSTFILE="hosts").startswith("-np 4 --hostfile /proc/")
    assert hosts_in_file(sandbox) == expected
    # Kubernetes' MPI operator sets it; Open MPI's word for no file is none.
    default = {"OMPI_MCA_orte_default_hostfile": "hosts"}
    assert run(sandbox, **default).startswith("-np 8 --hostfile /proc/")
    assert run(sandbox, HOSTS="ip1:2", **default).startswith("-np 2 -H ip1:2 ")
    none = {"OMPI_MCA_orte_default_hostfile": "none"}
    assert run(sandbox, **none).startswith("-np 2 -H localhost:2 ")

    expected[2:] = ["ip3", "localhost slots=1"]
    for option in ("-hostfile", "--machinefile"):
        said = launch(sandbox, "-np", "2", option, "hosts", "train", option, "own")
        assert f"/proc/self/fd/3 train {option} own\n" in said
    for words in (("--default-hostfile", "hosts"), ("-mca", "orte_default_hostfile", "hosts")):
        said = launch(sandbox, "-np", "2", *words, "train")
        assert " /proc/self/fd/3 " in said and " hosts " not in said
    assert " /proc/self/fd/3 " in launch(sandbox, "-np", "2", "train", **default)
    for option in ("-H", "-host", "--host"):
        said = launch(sandbox, option, "ip1:1,ip1:1,", "-np", "2", "train", option, "a,,")
        assert said.endswith(f" {option} ip1:2 -np 2 train {option} a,,\n")
    said = launch(sandbox, *"-x -H -np 1 -H a:1, p -H , : -n 1 -H b:1, q".split())
    assert said.endswith(" -x -H -np 1 -H a:1 p -H , : -n 1 -H b:1 q\n")
    assert file.read_bytes() == FILE


def test_the_examples_of_hostfiles(sandbox: Sandbox) -> None:
    """At the place where InsightFace has them, by its command as well."""
    shutil.copytree(ROOT / "hosts", sandbox.folder / "hosts")
    for name, ranks in (("host_8", 8), ("host_16", 16)):
        assert run(sandbox, HOSTFILE=f"hosts/{name}").startswith(f"-np {ranks} --hostfile ")
        slots = hosts_in_file(sandbox)
        assert sum(int(line.partition("=")[2]) for line in slots) == ranks
        words = f"-np {ranks} -hostfile hosts/{name} --allow-run-as-root -bind-to none -map-by "
        words += "slot -mca pml ob1 -mca btl ^openib -mca btl_tcp_if_include eth0 -x PATH"
        launch(sandbox, *words.split(), "bash", "config.sh")
        assert hosts_in_file(sandbox) == slots


TOO_MANY = "3 ranks are more than the 2 tasks of Slurm's allocation; ask for as many, as in salloc"
SLURM = {"SLURM_JOBID": "7", "SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "1(x2)"}


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"NP": "two"}, "NP='two' is not a number of ranks"),
        ({"NP": "0"}, "NP='0' is not a number of ranks"),
        ({"NP": "2\n3"}, "NP='2 3' is not a number of ranks"),
        ({"HOSTS": "a,,b"}, "HOSTS 'a,,b', host 2: '' is empty"),
        ({"HOSTFILE": "two"}, "two, line 1: 'ip1 slots=two' has 'two' for slots"),
        ({"HOSTS": "a:2\n", "HOSTFILE": "one"}, "HOSTS='a:2 ' and HOSTFILE='one' both name"),
        ({"HOSTS": "a:2,b:1", "NP": "4"}, "NP 4 is more ranks than the 3 slots"),
        ({"HOSTFILE": "bare", "NP": "3"}, "NP 3 is more ranks than the 2 slots"),
        ({**SLURM, "HOSTS": "a:2,b:1"}, TOO_MANY),
        ({**SLURM, "HOSTS": "a:1,b:1"}, None),
        ({**SLURM, "HOSTS": "a:2,b:1", "OMPI_MCA_ras": "^slurm"}, None),
        ({**SLURM, "NP": "3"}, None),
    ],
)
def test_run_refuses_wrong_hosts(
    sandbox: Sandbox, variables: dict[str, str], reason: Optional[str]
) -> None:
    (sandbox.folder / "one").write_text("ip1 slots=2\r\n")
    (sandbox.folder / "two").write_text("ip1 slots=two\n")
    (sandbox.folder / "bare").write_text("ip1\nip2\n")
    result = sandbox.run("bash", "run.sh", "--restarts", "3", **variables)
    if reason is None:
        assert result.returncode == 0, result.stderr
    else:
        assert_one_line(result, reason)
        assert not sandbox.calls


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        # Open MPI answers these with pages of text.
        ("-np 3 -H a:1,b:1 true", "-np 3 is more ranks than the 2 slots"),
        ("-np 5 -H a:1 -H b:1 true", "-np 5 is more"),
        ("-np 2 -H a:1 -H b:1 true", ""),
        ("-np 9 -hostfile hosts true", ""),
        ("-np 2 --default-hostfile . true", "cannot be read as a list of hosts"),
        ("-np 2 --default-hostfile none true", ""),
        ("-np 3 --oversubscribe -H a:1,b:1 true", ""),
        ("-np 3 --nooversubscribe -H a:1,b:1 true", "-np 3 is more"),
        ("-np x -H a:1 true", "-np 'x' is not a number of ranks"),
        ("-np 0 -H a:1 true", "-np '0' is not a number of ranks"),
        ("-np 1 --host=a:1 true", "write --host a:1"),
        ("-np 1 -hostfile hosts -H b true", "-H b is not among the hosts of --hostfile"),
        ("-np 1 -hostfile hosts -H 127.0.0.1 true", ""),
        ("", "there is no program to start"),
        ("-np 2 -H localhost:2", "there is no program to start"),
        ("-np 1 -H localhost:2 bash : -np 1 ./nothing", "'./nothing' is not a program"),
        ("-np 1 -H ip1:2 of-that-host", ""),
        ("--version", ""),
        ("--app programs", ""),
        ("-np 1 -H localhost:2 --flag-of-another-version bash nothing", ""),
        ("-np 1 --output-filename log.txt true", "--output-filename log.txt is no folder, and"),
        ("-np 1 --output-filename log.txt/a:nocopy true", "--output-filename log.txt/a is no"),
    ],
)
def test_mpirun_refuses_what_cannot_work(sandbox: Sandbox, words: str, reason: str) -> None:
    (sandbox.folder / "hosts").write_text("a\nlocalhost\n")
    (sandbox.folder / "log.txt").write_text("kept")
    result = sandbox.run("bash", LAUNCHER, *words.split())
    if reason:
        assert_one_line(result, reason)
    else:
        assert (result.returncode, result.stderr) == (0, "")
    assert bool(sandbox.calls) == (not reason)
    assert (sandbox.folder / "log.txt").read_text() == "kept"


@pytest.mark.parametrize("variable", ["PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE"])
def test_hosts_of_another_batch_system_are_not_left_out(sandbox: Sandbox, variable: str) -> None:
    (sandbox.folder / "nodes").write_text("localhost 2\na 2\n")
    words, given = ("-np", "4", "true"), {variable: str(sandbox.folder / "nodes")}
    result = sandbox.run("bash", LAUNCHER, *words, **given)
    assert_one_line(result, f"error: {variable} names other hosts, such as a, but this")
    (sandbox.folder / "nodes").write_text("localhost 2\nlocalhost 2\n")
    launch(sandbox, *words, **given)


@pytest.mark.parametrize(
    ("command", "variables", "reason"),
    [
        ("each", {"HOST_TIMEOUT": "5"}, "HOST_TIMEOUT='5' is not a number of seconds"),
        ("each", {"HOST_TIMEOUT": "2 minutes"}, "HOST_TIMEOUT='2 minutes' is not a number"),
        ("each", {"HOST_TIMEOUT": "100000"}, "HOST_TIMEOUT='100000' is not a number"),
        ("each", {"NIC": "eth77"}, "NIC='eth77': "),
        ("each", {"NIC": "lo,eth0"}, "NIC='lo,eth0': "),
        ("each", {"NIC": "../net/lo"}, "NIC='../net/lo': "),
        ("each", {"NIC": "l" * 300}, f"NIC='{'l' * 80}': "),
        ("each", {"NIC": "lo\n\x1b[31m"}, "NIC="),
        ("run.sh --restarts x\x1b[31m", {}, "--restarts"),
        ("run.sh", {"SEND_VARIABLES": "A=1"}, "SEND_VARIABLES: 'A' is not the name of a variable"),
    ],
    ids=str,
)
def test_wrong_variables_are_one_line(
    sandbox: Sandbox, command: str, variables: dict[str, str], reason: str
) -> None:
    for words in (LAUNCHER, "run.sh", HOROVODRUN) if command == "each" else (command,):
        result = sandbox.run("bash", *words.split(" "), **variables)
        assert_one_line(result, reason)
        assert sandbox.calls == "" and "\x1b" not in result.stderr


def test_choices_and_settings_reach_the_other_hosts(sandbox: Sandbox) -> None:
    choices = {"NETWORK": "r50", "NCCL_DEBUG": "INFO", "UNRELATED": "x"}
    run(sandbox, **choices)
    assert variables_sent(sandbox) == ["NCCL_DEBUG", "NETWORK", "PATH"]
    run(sandbox, SEND_VARIABLES="UNRELATED", **choices)
    assert variables_sent(sandbox) == ["NCCL_DEBUG", "NETWORK", "PATH", "UNRELATED"]
    sandbox.stub("orterun", ENVIRONMENT)
    run(sandbox, NIC="lo", HOROVOD_CONTROLLER="gloo")
    for name in (
        *("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"),
        *("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"),
    ):
        assert f"\n{name}=lo\n" in f"\n{sandbox.calls}"
    assert {"NIC", "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"} < set(variables_sent(sandbox))
    # Ranks of run.sh connect by MPI.
    assert "HOROVOD_CONTROLLER=" not in sandbox.calls


PASSED = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE"]


@pytest.mark.parametrize(
    ("shown", "others", "passed"),
    [
        ("2,3", {"HOSTS": "ip1:2,ip2:2"}, PASSED),
        ("", {"HOSTS": "ip1:2,ip2:2"}, PASSED),
        ("GPU-5fa2,GPU-77", {}, PASSED),
        ("GPU-5fa2", {"SLURM_JOB_ID": "7", "HOSTS": "ip1:2,ip2:2"}, PASSED[::2]),
        ("GPU-5fa2,GPU-77", {"HOSTS": "ip1:2,ip2:2"}, None),
        ("0,MIG-5fa2", {"HOSTFILE": "hosts"}, None),
    ],
)
def test_all_hosts_are_told_which_gpus_ranks_see(
    sandbox: Sandbox, shown: str, others: dict[str, str], passed: Optional[list[str]]
) -> None:
    """Unless Slurm tells each host its own; a GPU's UUID names nothing on another host."""
    (sandbox.folder / "hosts").write_text("ip1 slots=2\nip2 slots=2\n")
    gpus = {"CUDA_VISIBLE_DEVICES": shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    result = sandbox.run("bash", "run.sh", **gpus, NVIDIA_TF32_OVERRIDE="0", **others)
    if passed is None:
        assert_one_line(result, f"error: CUDA_VISIBLE_DEVICES='{shown}' names GPUs of a ")
        assert sandbox.calls == ""
    else:
        assert result.returncode == 0, result.stderr
        assert sorted(set(variables_sent(sandbox)) & set(PASSED)) == passed


def test_open_mpi_on_other_hosts(sandbox: Sandbox) -> None:
    """Its daemon runs under the guard, and with the prefix by which orterun was called here."""
    guard = f"bash {sandbox.folder}/setup-utils/launchers/remote-guard 120"
    agent = f"-mca orte_launch_agent {guard} env LD_LIBRARY_PATH=/a\\ b {sandbox.stubs}/orted"
    words = ("-np", "2", "true")
    assert launch(sandbox, *words, LD_LIBRARY_PATH="/a b").startswith(f"mpirun {agent} ")
    sandbox.stub("orterun", ENVIRONMENT)
    assert "plm_rsh_agent=remote-shell\n" in launch(sandbox, *words)
    assert "OMPI_MCA_plm_rsh_no_tree_spawn=1" in sandbox.calls
    said = launch(sandbox, *words, OMPI_MCA_plm_rsh_agent="/etc/kubexec.sh")
    assert "plm_rsh_agent=/etc/kubexec.sh\n" in said and "no_tree_spawn" not in said
    sandbox.stub("orterun_wrapper", ENVIRONMENT)
    link = sandbox.folder / "link"
    link.symlink_to(sandbox.stubs)
    said = launch(sandbox, *words, PATH=f"{link}:{sandbox.stubs}:/usr/bin:/bin")
    assert f"OPAL_PREFIX={link}\n" in said and f"env OPAL_PREFIX={link} {link}/orted" in said
    for name in ("orterun", "orterun_wrapper"):
        (sandbox.stubs / name).unlink()
    assert_one_line(sandbox.run("bash", "run.sh"), "Open MPI's orterun not found: run 'make env'")


@pytest.mark.parametrize(
    ("options", "variables", "leaves_out"),
    [
        ("-mca btl ^openib", {}, True),
        ("-mca btl_tcp_if_include eth0", {}, False),
        ("", {"NIC": "lo"}, False),
        ("", {"OMPI_MCA_btl_tcp_if_include": "eth0"}, False),
    ],
)
def test_bridges_of_containers_are_left_out_unless_interfaces_are_chosen(
    sandbox: Sandbox, options: str, variables: dict[str, str], leaves_out: bool
) -> None:
    sandbox.stub("orterun", ENVIRONMENT)
    said = launch(sandbox, "-np", "2", *options.split(), "true", **variables)
    found = re.findall("^OMPI_MCA_btl_tcp_if_exclude=(.*)$", said, re.MULTILINE)
    assert ["docker0" in names for names in found] == ([True] if leaves_out else [])


def test_launchers_in_an_environment_find_it_by_themselves(sandbox: Sandbox) -> None:
    programs = sandbox.folder / ".venv/bin"
    programs.mkdir(parents=True)
    notes = 'echo "$PATH: $*" >>"$CALLS"\n'
    (programs / "python").write_text(f"{REAL}{notes}")
    (programs / "python").chmod(0o755)
    sandbox.stub("orterun", f"#!/usr/bin/env bash\n{notes}")
    for name in ("mpirun", "horovodrun"):
        (programs / name).symlink_to(f"../../setup-utils/launchers/{name}")
        result = sandbox.run(f"{programs}/{name}", "-np", "2", "a b")
        assert result.returncode == 0, result.stderr
        # mpirun finds its remote shell there.
        added = f":{sandbox.folder}/setup-utils/launchers" if name == "mpirun" else ""
        assert sandbox.calls.startswith(f"{programs}:{sandbox.stubs}{added}: ")
        assert sandbox.calls.endswith(" -np 2 a b\n")


@pytest.mark.parametrize("active", [None, "VIRTUAL_ENV", "CONDA_PREFIX"])
def test_the_projects_environment_is_used_unless_another_is_active(
    sandbox: Sandbox, active: Optional[str]
) -> None:
    programs = sandbox.folder / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(SETTINGS + 'echo "from .venv" >>"$CALLS"\n')
    (programs / "python").chmod(0o755)
    sandbox.run("bash", "config.sh", **({active: "/elsewhere"} if active else {}))
    assert ("from .venv" in sandbox.calls) == (active is None)
